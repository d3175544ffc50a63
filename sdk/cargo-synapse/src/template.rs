//! The project that `new` writes: the files of the folder `template`, embedded in the program, with names filled in.
//!
//! State: none. Caller: the command. The Rust files are used as they stand, so that they are formatted and read like any
//! other; files ending in `.in` have slots: `{{id}}`, `{{kind}}`, …, and `{{sha256:PATH}}`, `{{size:PATH}}` for a file of
//! the same project.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};

use crate::args::Kind;
use crate::bundle::hex;

/// A file of the template: where it goes in a project, and its text.
type Entry = (&'static str, &'static str);

macro_rules! entries {
    ($($to:literal = $from:literal),* $(,)?) => {
        &[$(($to, include_str!(concat!("../template/", $from)))),*]
    };
}

const ALL: &[Entry] = entries![
    "Cargo.toml" = "all/Cargo.toml.in",
    "plugin.toml" = "all/plugin.toml.in",
    "README.md" = "all/README.md.in",
    ".gitignore" = "all/gitignore.in",
    ".github/workflows/ci.yml" = "all/ci.yml.in",
    "catalog/lanes.toml" = "all/lanes.toml.in",
    "model/tokenizer.json" = "all/model/tokenizer.json",
];

const TABLE: &[Entry] = entries![
    "src/table.rs" = "table/src/table.rs",
    "model/table.txt" = "table/model/table.txt",
];

const EMBED: &[Entry] = entries![
    "src/lib.rs" = "embed/src/lib.rs",
    "src/tests.rs" = "embed/src/tests.rs",
    "catalog/tiny.toml" = "embed/catalog/tiny.toml.in",
    "conformance.toml" = "embed/conformance.toml",
];

const RERANK: &[Entry] = entries![
    "src/lib.rs" = "rerank/src/lib.rs",
    "src/tests.rs" = "rerank/src/tests.rs",
    "catalog/tiny.toml" = "rerank/catalog/tiny.toml.in",
    "conformance.toml" = "rerank/conformance.toml",
];

const GENERATE: &[Entry] = entries![
    "src/lib.rs" = "generate/src/lib.rs",
    "src/tests.rs" = "generate/src/tests.rs",
    "src/lines.rs" = "generate/src/lines.rs",
    "model/lines.txt" = "generate/model/lines.txt",
    "catalog/tiny.toml" = "generate/catalog/tiny.toml.in",
    "conformance.toml" = "generate/conformance.toml",
];

/// What is different in the files of a kind.
struct Words {
    kind: &'static str,
    title: &'static str,
    format: &'static str,
    module: &'static str,
    attempt: &'static str,
}

const fn words(kind: Kind) -> Words {
    match kind {
        Kind::Embed => Words {
            kind: "embed",
            title: "Embeds texts by a table of numbers",
            format: "table",
            module: "table",
            attempt: "synapse embed --model {{id}}/tiny \"hello\"",
        },
        Kind::Rerank => Words {
            kind: "rerank",
            title: "Scores texts by a table of numbers",
            format: "table",
            module: "table",
            attempt: "synapse rerank --model {{id}}/tiny \"a question\" \"an answer\" \"another\"",
        },
        Kind::Generate => Words {
            kind: "generate",
            title: "Recites the line that the prompt chooses",
            format: "lines",
            module: "lines",
            attempt: "synapse generate --model {{id}}/tiny \"hello\"",
        },
    }
}

/// The SDK's version, as a dependency asks for it: this program's own.
const SDK: &str = env!("CARGO_PKG_VERSION");

/// The files of a new project, by path.
pub fn project(id: &str, kind: Kind) -> Vec<(&'static str, String)> {
    let own: &[&[Entry]] = match kind {
        Kind::Embed => &[TABLE, EMBED],
        Kind::Rerank => &[TABLE, RERANK],
        Kind::Generate => &[GENERATE],
    };
    let entries: Vec<Entry> = ALL.iter().chain(own.iter().copied().flatten()).copied().collect();
    let words = words(kind);
    let library = format!("{DLL_PREFIX}{}{DLL_SUFFIX}", id.replace('-', "_"));
    let slots = [
        ("{{try}}", words.attempt),
        ("{{id}}", id),
        ("{{kind}}", words.kind),
        ("{{title}}", words.title),
        ("{{format}}", words.format),
        ("{{model_module}}", words.module),
        ("{{library}}", &library),
        ("{{sdk}}", SDK),
    ];
    let fill = |text: &str| {
        let mut text = slots
            .iter()
            .fold(text.to_owned(), |text, (slot, word)| text.replace(slot, word));
        for (path, content) in entries.iter().filter(|(path, _)| path.starts_with("model/")) {
            text = text.replace(&format!("{{{{sha256:{path}}}}}"), &hex(content.as_bytes()));
            text = text.replace(&format!("{{{{size:{path}}}}}"), &content.len().to_string());
        }
        text
    };
    entries.iter().map(|(path, text)| (*path, fill(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No slot is left, every file is there once, and manifests are TOML.
    #[test]
    fn every_kind_of_project_is_whole() {
        for kind in [Kind::Embed, Kind::Rerank, Kind::Generate] {
            let files = project("my-plugin", kind);
            for (path, text) in &files {
                assert!(!text.contains("{{"), "{path}: {text}");
                assert_eq!(files.iter().filter(|(other, _)| other == path).count(), 1, "{path}");
                let is_toml = path.ends_with(".toml");
                assert!(
                    !is_toml || toml::from_str::<toml::Table>(text).is_ok(),
                    "{path}: {text}"
                );
            }
            let text = |name: &str| &files.iter().find(|(path, _)| *path == name).expect(name).1;
            assert!(text("plugin.toml").contains("my_plugin"), "the library's name");
            assert!(text("catalog/tiny.toml").contains("id = \"my-plugin/tiny\""));
        }
    }
}

//! The tutorials of docs/book/author, followed to the letter: every file and every command of theirs, in their order.
//!
//! A block whose first line is ```` ```LANGUAGE file=PATH ```` is written to PATH in the project, one with `append=PATH` goes to
//! its end. A block of `console` holds commands behind `$ `; `console background` starts a daemon and waits until it answers.
//! Everything becomes one shell script, which ends at the first command that fails. The daemon, the worker and the command are
//! those of this build, which `make plugins` laid out beside the tool.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::ground::{Place, finish, place, repository};

/// A step of a tutorial.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A command in the folder that the commands before led to.
    Run(String),
    /// A command that goes on beside the others.
    Background(String),
    /// A file of the project, and whether the text goes to its end.
    File(String, String, bool),
}

/// The steps of a page, in order.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```").filter(|info| !info.is_empty()) else {
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let text = body.iter().map(|line| format!("{line}\n")).collect::<String>();
        let words: Vec<&str> = info.split(' ').collect();
        match words[..] {
            ["console"] | ["console", "background"] => {
                for line in body {
                    let command = line
                        .strip_prefix("$ ")
                        .unwrap_or_else(|| panic!("no command: {line}"))
                        .to_owned();
                    let background = words.len() > 1;
                    steps.push(if background {
                        Step::Background(command)
                    } else {
                        Step::Run(command)
                    });
                }
            }
            [_, target] => {
                let (way, path) = target
                    .split_once('=')
                    .unwrap_or_else(|| panic!("a block of an unknown kind: {info}"));
                assert!(matches!(way, "file" | "append"), "a block of an unknown kind: {info}");
                steps.push(Step::File(path.to_owned(), text, way == "append"));
            }
            _ => panic!("a block of an unknown kind: {info}"),
        }
    }
    steps
}

/// A shell script that takes the steps.
fn script(place: &Place, steps: &[Step]) -> String {
    let mut script = String::from("set -eu\ntrap 'kill ${daemon:-} 2>/dev/null || true; wait' EXIT\n");
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Run(command) => {
                script.push_str(&format!("echo '$ {}' >&2\n{command}\n", command.replace('\'', "\"")))
            }
            Step::Background(command) => {
                let log = place.folder.join("daemon.log");
                script.push_str(&format!("{command} 2>'{}' &\ndaemon=$!\n", log.display()));
                script.push_str("until synapse status >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done\n");
            }
            Step::File(path, text, append) => {
                let kept = place.folder.join(format!("block-{number}"));
                fs::write(&kept, text).expect("writes");
                let arrow = if *append { ">>" } else { ">" };
                let folder = Path::new(path).parent().expect("a file's folder").display().to_string();
                let folder = if folder.is_empty() { ".".to_owned() } else { folder };
                script.push_str(&format!(
                    "mkdir -p '{folder}'\ncat '{}' {arrow} '{path}'\n",
                    kept.display()
                ));
            }
        }
    }
    script
}

/// Follows a page; gives what its last command printed, and how many seconds all of it took.
fn follow(name: &str) -> (String, u64) {
    let tool = Path::new(env!("CARGO_BIN_EXE_cargo-synapse"));
    let build = tool.parent().expect("a folder");
    for program in ["synapse", "synapse-worker"] {
        let profile = build.file_name().unwrap_or_default().display();
        assert!(
            build.join(program).exists(),
            "{program} is missing beside the tool; run `make plugins PROFILE={profile}` first, as `make test` does"
        );
    }
    let page = repository().join("docs/book/author").join(format!("{name}.md"));
    let steps = steps(&fs::read_to_string(&page).expect("the page"));
    let place = place();
    let runtime = place.folder.join("run");
    fs::create_dir_all(&runtime).expect("a folder");
    let file = place.folder.join("script");
    fs::write(&file, script(&place, &steps)).expect("writes");
    let started = Instant::now();
    let command = place.command("/bin/sh").arg(&file).dir(&place.folder);
    let ran = finish(
        command
            .env("XDG_RUNTIME_DIR", &runtime)
            .env("XDG_CONFIG_HOME", place.folder.join("config")),
    );
    let log = fs::read_to_string(place.folder.join("daemon.log")).unwrap_or_default();
    assert_eq!(ran.code, Some(0), "{name}:\n{}\n{}\n{log}", ran.stdout, ran.stderr);
    let seconds = started.elapsed().as_secs();
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{name}: every step in {seconds} s");
    (ran.stdout, seconds)
}

/// The last object that a page's commands printed is a vector of the model, certified as its own bundle's.
fn serves(name: &str, model: &str) {
    let (printed, _) = follow(name);
    let at = printed.rfind("\n{").map_or(0, |at| at + 1);
    let reply: serde_json::Value = serde_json::from_str(printed[at..].trim()).expect("an object");
    let text = reply.to_string();
    let vector = find(&reply, "vector").or_else(|| find(&reply, "vectors").and_then(|list| list.get(0)));
    let vector = vector
        .and_then(serde_json::Value::as_array)
        .unwrap_or_else(|| panic!("no vector: {text}"));
    let values: Vec<f64> = vector.iter().filter_map(serde_json::Value::as_f64).collect();
    assert_eq!(values.len(), 16, "{text}");
    let length: f64 = values.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5, "the record says normalised: {length}");
    assert!(text.contains(model), "{text}");
    assert!(
        text.contains("consistent"),
        "the certificate's level is in the provenance: {text}"
    );
}

/// The first field of this name, however deep.
fn find<'a>(value: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(fields) => fields
            .get(name)
            .or_else(|| fields.values().find_map(|value| find(value, name))),
        serde_json::Value::Array(list) => list.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

/// The acceptance of issue and page: `new`, `check`, `install` outside the workspace, then a probe and a served vector.
#[test]
fn the_first_plugin_is_served() {
    serves("first-plugin", "demo/tiny");
}

#[test]
fn the_c_library_is_served_by_a_worker() {
    serves("c-library", "tally/tiny");
}

#[test]
fn a_page_is_read_as_it_is_shown() {
    let page = "# T\n\n```console\n$ a b\n$ c\n```\n\n```rust file=src/x.rs\nfn x() {}\n```\n```toml append=y\nk = 1\n```\n\
                ```console background\n$ d\n```\n";
    let expected = [
        Step::Run("a b".to_owned()),
        Step::Run("c".to_owned()),
        Step::File("src/x.rs".to_owned(), "fn x() {}\n".to_owned(), false),
        Step::File("y".to_owned(), "k = 1\n".to_owned(), true),
        Step::Background("d".to_owned()),
    ];
    assert_eq!(steps(page), expected);
}

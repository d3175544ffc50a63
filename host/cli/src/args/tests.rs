//! What the command line takes, refuses and explains.

use clap::CommandFactory;

use super::*;

fn parse(line: &[&str]) -> Result<Arguments, clap::error::ErrorKind> {
    Arguments::try_parse_from([&["synapse"], line].concat()).map_err(|error| error.kind())
}

#[test]
fn the_definition_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn every_command_has_help_and_takes_the_global_options() {
    fn visit(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path} has no help");
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{path}: {} has no help",
                argument.get_id()
            );
        }
        for sub in command.get_subcommands() {
            visit(sub, &format!("{path} {}", sub.get_name()));
        }
    }
    visit(&Arguments::command(), "synapse");
    let lines: &[&[&str]] = &[
        &["serve"],
        &["embed", "a"],
        &["embed", "--file", "d.txt", "--out", "v.npy"],
        &["rerank", "q", "a"],
        &["generate", "p"],
        &["tokenize", "a"],
        &["models", "list"],
        &["models", "show", "m"],
        &["models", "pull", "m"],
        &["models", "rm", "m"],
        &["models", "load", "m"],
        &["models", "unload", "m"],
        &["jobs", "list"],
        &["jobs", "show", "j"],
        &["jobs", "cancel", "j"],
        &["setup"],
        &["setup", "m", "--yes"],
        &["probe", "run"],
        &["probe", "run", "m", "m@e:v"],
        &["probe", "report"],
        &["plugin", "list"],
        &["plugin", "show", "p"],
        &["plugin", "check", "p", "--only", "WP-*"],
        &["plugin", "trust", "p"],
        &["plugin", "untrust", "p"],
        &["plugin", "disable", "p"],
        &["plugin", "enable", "p"],
        &["plugin", "rescan"],
        &["status"],
        &["call", "health"],
        &["catalog", "check", "f"],
        &["config", "show"],
        &["doctor"],
        &["completions", "bash"],
    ];
    for line in lines {
        let arguments = parse(&[line, &["--json", "--socket", "/s"][..]].concat()).unwrap();
        assert!(arguments.global.json, "{line:?}");
        assert_eq!(arguments.global.socket, Some(PathBuf::from("/s")), "{line:?}");
    }
}

#[test]
fn values_are_checked() {
    use clap::error::ErrorKind::{
        ArgumentConflict, InvalidValue, MissingRequiredArgument, UnknownArgument, ValueValidation,
    };
    for (line, kind) in [
        (vec!["embed", "--role", "QUERY", "a"], ValueValidation),
        (vec!["embed", "--dimensions", "-1", "a"], UnknownArgument),
        (vec!["embed", "--file", "f"], MissingRequiredArgument),
        (vec!["embed", "--out", "v.npy"], MissingRequiredArgument),
        (vec!["embed", "--out", "v.npy", "a"], ArgumentConflict),
        (vec!["embed", "--yes", "a"], ArgumentConflict),
        (vec!["embed", "a", "--file", "f", "--out", "v.npy"], ArgumentConflict),
        (vec!["models", "pull", "m", "--source", "ftp"], ValueValidation),
        (vec!["status", "--color", "blue"], InvalidValue),
        (vec!["models", "show"], MissingRequiredArgument),
        (vec!["serve", "--unknown"], UnknownArgument),
        (vec!["rerank"], MissingRequiredArgument),
        (vec!["rerank", "q", "a", "--file", "f"], ArgumentConflict),
        (vec!["rerank", "q", "--top", "0"], ValueValidation),
        (vec!["generate"], MissingRequiredArgument),
        (vec!["generate", "p", "--chat", "--no-chat"], ArgumentConflict),
        (vec!["generate", "p", "--system", "s", "--no-chat"], ArgumentConflict),
        (vec!["generate", "p", "--timeout", "0"], ValueValidation),
        (vec!["generate", "p", "--max-tokens", "many"], ValueValidation),
    ] {
        assert_eq!(parse(&line).unwrap_err(), kind, "{line:?}");
    }
}

#[test]
fn plugin_dirs_may_be_repeated_and_a_dash_is_a_text() {
    let Command::Serve(serve) = parse(&["serve", "--plugin-dir", "a", "--plugin-dir", "b"])
        .unwrap()
        .command
    else {
        panic!("not serve");
    };
    assert_eq!(serve.places.plugin_dirs, [PathBuf::from("a"), PathBuf::from("b")]);
    let Command::Embed(embed) = parse(&["embed", "-"]).unwrap().command else {
        panic!("not embed");
    };
    assert_eq!(embed.texts, ["-"]);
    assert_eq!(embed.role, Role::Document);
}

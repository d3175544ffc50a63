//! `synapse setup` and `synapse probe` as a user types them.

use serde_json::{Value, json};

use super::{place, pull, query};
use crate::support::cli::synapse;

const TOY: &str = "toy@reference:f32";

/// The widest line of a text.
fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Setting up twice measures once; what it says fits a terminal, and it asks nothing where there is none.
#[test]
fn setup_may_be_repeated() {
    let place = place(&[], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    let first = synapse(&place, &["setup", "toy", "--json"], "");
    assert_eq!(first.code, 0, "{}{}", first.stdout, first.stderr);
    let first: Value = first.lines().remove(0);
    assert_eq!((&first["model"], &first["serves"]), (&json!("toy"), &json!([TOY])));
    assert_eq!(first["probed"]["probed"][0]["state"], "certified", "{first}");
    assert!(first.get("pulled").is_none(), "its files were here: {first}");
    let second = synapse(&place, &["setup", "toy", "--json"], "");
    assert_eq!(second.code, 0, "{}", second.stderr);
    let second: Value = second.lines().remove(0);
    assert!(second.get("probed").is_none(), "{second}");
    assert_eq!(
        second["report"]["lanes"], first["report"]["lanes"],
        "nothing was measured again"
    );
    client.load(TOY);
    client.ok("embed.query", &query("toy", "it serves"));

    let text = synapse(&place, &["setup", "toy"], "");
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stdout.contains("ready toy: synapse embed"), "{}", text.stdout);
    for arguments in [&["probe", "report"][..], &["probe", "run", "toy"]] {
        let run = synapse(&place, arguments, "");
        assert_eq!(run.code, 0, "{arguments:?}: {}", run.stderr);
        assert!(
            run.stdout.contains(TOY) && run.stdout.contains("certified"),
            "{}",
            run.stdout
        );
        assert!(widest(&run.stdout) <= 100, "{}", run.stdout);
    }
    assert!(daemon.stop().success());
}

/// A lane that fails is an error that says which and why; nothing else is.
#[test]
fn a_lane_that_fails_is_said_and_exits_with_3() {
    let place = place(&[("fault", "nan")], "");
    let daemon = place.start();
    let mut client = daemon.connect();
    pull(&mut client, &place, "toy");
    let run = synapse(&place, &["probe", "run", TOY], "");
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    assert!(
        run.stderr.contains("toy@reference:f32 is not certified"),
        "{}",
        run.stderr
    );
    assert!(run.stdout.contains("finite"), "the gate is named: {}", run.stdout);
    let setup = synapse(&place, &["setup", "toy"], "");
    assert_eq!(setup.code, 3, "{}{}", setup.stdout, setup.stderr);
    assert!(setup.stderr.contains("no lane may serve toy"), "{}", setup.stderr);
    let absent = synapse(&place, &["setup", "no-such-model"], "");
    assert_eq!(absent.code, 3, "{}", absent.stderr);
    assert!(absent.stderr.contains("no model `no-such-model`"), "{}", absent.stderr);
    assert!(daemon.stop().success());
    let nobody = synapse(&place, &["setup"], "");
    assert_eq!(nobody.code, 5, "{}", nobody.stderr);
}

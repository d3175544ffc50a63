//! The scheduler under seeded histories, and each of its rules alone.
//!
//! State: none. `world` plays a history and `model` checks every step of it; `rules` holds what a history only touches.
//! A failing seed is named; `SYNAPSE_SIM_SEED=SEED cargo test -p synapse-core --test schedule` replays it and shows
//! its last steps. `SYNAPSE_TEST_LONG` makes it 100,000 histories.

mod chance;
mod model;
mod rules;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::World;

/// Events of one history, before everything that is left is worked off.
const STEPS: usize = 250;

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| String::from("(no words)"))
}

/// Plays the history of one seed; says what broke.
fn play(seed: u64, trace: bool) -> Result<(), String> {
    let mut world = World::new(seed, trace);
    catch_unwind(AssertUnwindSafe(|| world.run(STEPS)))
        .map_err(|panic| format!("{}\n{}", words(panic.as_ref()), world.story()))
}

/// Proves SCHED-01, SCHED-02, SCHED-03, SCHED-04, SCHED-05, SCHED-06, SCHED-09, SCHED-13, SCHED-15, TEST-44. In every
/// history each rule holds at each step, every request is started, refused or withdrawn exactly once, every job is
/// done exactly once whatever fails or restarts, and every lane's bytes return to zero.
#[test]
fn the_rules_hold_in_seeded_histories() {
    if let Ok(seed) = std::env::var("SYNAPSE_SIM_SEED") {
        let seed = seed.parse().expect("SYNAPSE_SIM_SEED is a number");
        if let Err(story) = play(seed, true) {
            panic!("the history of seed {seed} breaks: {story}");
        }
        return;
    }
    let long = std::env::var_os("SYNAPSE_TEST_LONG").is_some();
    for seed in 0..if long { 100_000 } else { 2_000 } {
        if let Err(story) = play(seed, false) {
            panic!("the history of seed {seed} breaks; SYNAPSE_SIM_SEED={seed} replays it: {story}");
        }
    }
}

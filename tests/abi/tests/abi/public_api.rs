//! What authors see of the two crates is what the golden files say.

use synapse_abi::{
    golden::{check, source},
    public_api,
};

fn compare(name: &str, folder: &str) {
    let text = public_api::of(&source(folder)).expect("the crate parses");
    assert!(text.lines().count() > 100, "{name}: {text}");
    let compared = check(&format!("{name}.txt"), &text);
    compared.unwrap_or_else(|error| panic!("what authors see has changed: {error}"));
}

/// From 1.0.0 on a change here is a mistake, whatever the reason (PC-07).
#[test]
fn the_public_items_of_plugin_api_are_the_published_ones() {
    compare("plugin-api", "../../plugin-api/src");
}

/// `SYNAPSE_BLESS=1` writes the file: whoever reviews the change sees in its diff what authors would see.
#[test]
fn the_public_items_of_plugin_sdk_are_the_published_ones() {
    compare("plugin-sdk", "../../sdk/plugin-sdk/src");
}

//! Pages of docs/ that are generated from code: compared by tests, rewritten when `SYNAPSE_BLESS=1`.
//!
//! State: none. Callers: the tests that own a page. Not known here: what a page says.

use std::path::Path;

/// Compares `text` with `docs/<name>`, or writes it there when `SYNAPSE_BLESS=1`.
pub fn assert_doc(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("SYNAPSE_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/{name} is not what the code says; run the test again with SYNAPSE_BLESS=1 and commit the page"
    );
}

//! What the tool says when something is wrong, and what packing and installing give.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::ground::{digest, edit, finish, ground, place};

/// Names that are no ids, and a folder that is there, are refused before anything is written.
#[test]
fn new_refuses_what_cannot_be_a_plugin() {
    let place = place();
    for name in ["Demo", "1st", "a_b", "-a", "a-"] {
        let words = place.synapse(".", &["new", "--", name]).badly(name, 2);
        assert!(words.contains("no plugin's id"), "{words}");
        assert!(!place.folder.join(name).exists(), "{name}");
    }
    place.project("demo", "embed");
    let words = place.synapse(".", &["new", "demo"]).badly("twice", 2);
    assert!(words.contains("is there already"), "{words}");
    place
        .synapse(".", &["new", "demo2", "--kind", "paint"])
        .badly("kind", 2);
}

/// Outside a project, in a project that is no plugin, without a toolchain: one line that says what to do.
#[test]
fn what_is_missing_is_named() {
    let place = place();
    fs::create_dir_all(place.folder.join("empty")).expect("a folder");
    let words = place.synapse("empty", &["pack"]).badly("no project", 3);
    assert!(words.contains("no Rust project here"), "{words}");

    let project = place.project("plain", "embed");
    edit(
        &project.join("Cargo.toml"),
        "crate-type = [\"cdylib\"]",
        "crate-type = [\"rlib\"]",
    );
    let words = place.synapse("plain", &["pack"]).badly("no cdylib", 3);
    assert!(words.contains("crate-type = [\"cdylib\"]"), "{words}");

    let project = place.project("bare", "embed");
    fs::remove_file(project.join("plugin.toml")).expect("removes");
    let words = place.synapse("bare", &["pack"]).badly("no manifest", 3);
    assert!(words.contains("plugin.toml"), "{words}");

    let command = place
        .command(env!("CARGO_BIN_EXE_cargo-synapse"))
        .env("CARGO", "/nowhere/cargo");
    let words = finish(command.args(["synapse", "pack"]).dir(project)).badly("no cargo", 4);
    assert!(
        words.contains("/nowhere/cargo") && words.contains("install Rust"),
        "{words}"
    );

    let words = place.synapse(".", &["explain", "no-such-check"]).badly("explain", 2);
    assert!(words.contains("no-such-check"), "{words}");
    let words = place
        .synapse(".", &["check", "--bundle", "empty", "--level", "deep"])
        .badly("level", 2);
    assert!(words.contains("core, full, fault or perf"), "{words}");
    let list = place.synapse(".", &["explain"]).well("explain");
    let first = list
        .lines()
        .next()
        .and_then(|line| line.split(' ').next())
        .expect("a check");
    assert!(
        place.synapse(".", &["explain", first]).well(first).len() > 100,
        "{first}"
    );
}

/// Two versions, a stray export, a record that speaks of another file, code that does not build: no bundle.
#[test]
fn packing_refuses_what_a_host_would_refuse_later() {
    let place = place();
    let mistakes = [
        (
            "versions",
            "plugin.toml",
            "version = \"0.1.0\"",
            "version = \"0.2.0\"",
            "make both equal",
        ),
        (
            "digests",
            "plugin.toml",
            "schema = 1",
            "schema = 1\nfiles = {}",
            "remove the table",
        ),
        (
            "keys",
            "plugin.toml",
            "abi = \"1\"",
            "abi = \"1\"\nrsik = \"abort-safe\"",
            "unknown field `rsik`",
        ),
        (
            "offers",
            "plugin.toml",
            "engines = [\"embed\"]",
            "engines = [\"rerank\"]",
            "engines",
        ),
        (
            "stray",
            "src/lib.rs",
            "mod table;\n",
            "mod table;\n#[unsafe(no_mangle)]\npub extern \"C\" fn stray() {}\n",
            "stray",
        ),
        (
            "broken",
            "src/lib.rs",
            "mod table;\n",
            "mod table;\nmod nothing;\n",
            "could not build",
        ),
        (
            "private",
            "plugin.toml",
            "abi = \"1\"",
            "abi = \"1\"\nprivate_libraries = [\"libx.so\"]",
            "libx.so",
        ),
    ];
    for (name, file, find, put, expect) in mistakes {
        let project = place.project(name, "embed");
        edit(&project.join(file), find, put);
        let out = place.folder.join(format!("{name}-out"));
        let words = place
            .synapse(name, &["pack", "--out", out.to_str().expect("UTF-8")])
            .badly(name, 3);
        assert!(words.contains(expect), "{name}: {words}");
        assert!(!out.join(name).exists(), "{name}: there is no half bundle");
    }
    let project = place.project("records", "embed");
    edit(
        &project.join("model/table.txt"),
        "table 1\nrows 128\ndims 16\n70 ",
        "table 1\nrows 128\ndims 16\n71 ",
    );
    let words = place.synapse("records", &["pack"]).badly("records", 3);
    assert!(
        words.contains("model/table.txt is another file") && words.contains("sha256 = "),
        "{words}"
    );
}

/// The same sources give the same bundle in another folder, and everything in it is listed by its digest.
#[test]
fn packing_is_reproducible() {
    let place = place();
    let mut digests = Vec::new();
    for folder in ["one", "two/deeper"] {
        fs::create_dir_all(place.folder.join(folder)).expect("a folder");
        place.synapse(folder, &["new", "same"]).well("new");
        let project = format!("{folder}/same");
        let out = place.folder.join(folder).join("out");
        let packed = place.synapse(&project, &["pack", "--out", out.to_str().expect("UTF-8")]);
        assert!(
            packed.stderr.contains("Compiling same"),
            "each folder is built: {}",
            packed.stderr
        );
        let told = packed.well("pack");
        digests.push(digest(&told).to_owned());
        let bundle = out.join("same");
        let manifest = fs::read_to_string(bundle.join("plugin.toml")).expect("a manifest");
        for file in [
            "libsame.so",
            "catalog/tiny.toml",
            "catalog/lanes.toml",
            "model/table.txt",
            "conformance.toml",
        ] {
            assert!(manifest.contains(&format!("\"{file}\" = \"")), "{file}: {manifest}");
            let mode = fs::metadata(bundle.join(file)).expect(file).permissions().mode();
            assert_eq!(mode & 0o777, 0o644, "{file}");
        }
        let library = fs::read(bundle.join("libsame.so")).expect("a library");
        let home = ground().cargo_home();
        for path in [&place.folder, &home].map(|path| path.to_str().expect("UTF-8").as_bytes()) {
            assert!(
                !library.windows(path.len()).any(|window| window == path),
                "a path of this machine is in the library"
            );
        }
    }
    assert_eq!(digests[0], digests[1]);
}

/// A bundle is replaced as a whole; nothing is left of the old one or of the way.
#[test]
fn installing_replaces_a_bundle() {
    let place = place();
    let project = place.project("twice", "embed");
    let first = place.synapse("twice", &["install"]).well("install");
    let plugins = place.folder.join("home/data/synapse/plugins");
    assert!(
        first.contains("synapse probe run twice/tiny") && first.contains("synapse plugin trust twice"),
        "{first}"
    );
    edit(
        &project.join("plugin.toml"),
        "version = \"0.1.0\"",
        "version = \"0.1.1\"",
    );
    edit(
        &project.join("Cargo.toml"),
        "version = \"0.1.0\"",
        "version = \"0.1.1\"",
    );
    fs::remove_file(project.join("README.md")).expect("removes");
    let second = place.synapse("twice", &["install", "--json"]).well("install");
    assert!(
        second.contains("\"version\": \"0.1.1\"") && !second.contains(digest(&first)),
        "{second}"
    );
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&plugins), ["twice"]);
    let files = ["catalog", "conformance.toml", "libtwice.so", "model", "plugin.toml"];
    assert_eq!(names(&plugins.join("twice")), files);
    // What is installed is what is packed: a bundle can be installed again from where it lies.
    let bundle = plugins.join("twice");
    let other = place.folder.join("other");
    let arguments = [
        "install",
        "--bundle",
        bundle.to_str().expect("UTF-8"),
        "--plugin-dir",
        other.to_str().expect("UTF-8"),
    ];
    let third = place.synapse(".", &arguments).well("install");
    assert!(second.contains(digest(&third)), "{third}");
}

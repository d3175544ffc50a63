//! Which crate may know which (ARCHITECTURE.md, "Arrows").
//!
//! State: none. The table is the picture there in another form; changing one means changing the other.

use std::collections::BTreeMap;

use crate::Violation;
use crate::tree::Tree;

/// A package of ours, and the packages of ours that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("synapse-plugin-api", &[]),
    ("synapse-plugin-sdk", &["synapse-plugin-api"]),
    ("synapse-core", &[]),
    ("synapse-wire", &[]),
    ("synapse-catalog", &["synapse-core"]),
    ("synapse-loader", &["synapse-plugin-api", "synapse-core"]),
    ("synapse-transport", &[]),
    (
        "synapse-worker",
        &["synapse-loader", "synapse-transport", "synapse-wire", "synapse-core"],
    ),
    ("synapse-certify", &["synapse-core", "synapse-catalog"]),
    (
        "synapse-daemon",
        &[
            "synapse-loader",
            "synapse-transport",
            "synapse-wire",
            "synapse-core",
            "synapse-certify",
            "synapse-catalog",
        ],
    ),
    ("synapse-client", &["synapse-wire"]),
    // The kit plays the host of a library and the daemon of a worker.
    (
        "synapse-conformance",
        &[
            "synapse-plugin-api",
            "synapse-loader",
            "synapse-transport",
            "synapse-wire",
            "synapse-core",
        ],
    ),
    // The author's tool runs the kit, and lets the loader judge what it packs.
    (
        "cargo-synapse",
        &["synapse-conformance", "synapse-loader", "synapse-plugin-api"],
    ),
    // The command names wire's types in its output, judges catalog files without a daemon, and runs the kit.
    (
        "synapse",
        &[
            "synapse-daemon",
            "synapse-client",
            "synapse-wire",
            "synapse-catalog",
            "synapse-conformance",
        ],
    ),
];

/// Packages outside that some of ours may not, or alone may, depend on.
const OUTSIDE: &[(&str, &[&str], &str)] = &[
    ("rusqlite", &["synapse-daemon"], "only daemon/store knows SQL"),
    (
        "abi_stable",
        &["synapse-plugin-api"],
        "everybody else uses plugin-api's re-export, so that there is one version",
    ),
    (
        "tokio",
        &[
            "synapse-daemon",
            "synapse",
            "synapse-client",
            "synapse-gateway",
            "synapse-transport",
        ],
        "the rest is plain values or plain threads; transport waits with a bound on Windows pipes only with it",
    ),
];

/// The whole list of packages outside that core may use: no clock, no randomness, no I/O, no serialisation.
const CORE_OUTSIDE: [&str; 4] = ["ryu-js", "semver", "sha2", "thiserror"];

struct Package {
    manifest: String,
    folder: String,
    name: String,
    /// `[dependencies]` and `[build-dependencies]`, of every target.
    uses: Vec<String>,
    /// `[lints] workspace = true`.
    inherits_lints: bool,
}

fn packages(tree: &Tree) -> Vec<Package> {
    let mut list = Vec::new();
    for (path, text) in tree.files() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        // Workspaces of their own: plugins of another time, built against a vendored copy of the frozen source.
        if folder.starts_with("tests/abi/fixtures/") {
            continue;
        }
        let Ok(table) = toml::from_str::<toml::Table>(text) else {
            continue;
        };
        let Some(name) = table
            .get("package")
            .and_then(|p| p.get("name"))
            .and_then(|n| n.as_str())
        else {
            continue;
        };
        let mut uses = Vec::new();
        let targets = table
            .get("target")
            .and_then(|t| t.as_table())
            .into_iter()
            .flat_map(toml::Table::values);
        for place in std::iter::once(&toml::Value::Table(table.clone())).chain(targets) {
            for kind in ["dependencies", "build-dependencies"] {
                uses.extend(
                    place
                        .get(kind)
                        .and_then(|d| d.as_table())
                        .into_iter()
                        .flat_map(toml::Table::keys)
                        .cloned(),
                );
            }
        }
        let lints = table.get("lints").and_then(|lints| lints.get("workspace"));
        let inherits_lints = lints.and_then(toml::Value::as_bool) == Some(true);
        let (manifest, folder, name) = (path.to_owned(), folder.to_owned(), name.to_owned());
        list.push(Package {
            manifest,
            folder,
            name,
            uses,
            inherits_lints,
        });
    }
    list
}

/// The names of the workspace's packages.
pub(crate) fn package_names(tree: &Tree) -> Vec<String> {
    packages(tree).into_iter().map(|package| package.name).collect()
}

/// Every arrow is in the table; plugins know the SDK alone; tests may know everybody.
pub fn allowed(tree: &Tree) -> Vec<Violation> {
    let packages = packages(tree);
    let ours: BTreeMap<&str, &Package> = packages.iter().map(|p| (p.name.as_str(), p)).collect();
    let mut found = Vec::new();
    for package in packages.iter().filter(|p| !p.folder.starts_with("tests/")) {
        let may: &[&str] = if package.folder.starts_with("plugins/") {
            &["synapse-plugin-sdk"]
        } else if let Some((_, may)) = ARROWS.iter().find(|(name, _)| *name == package.name) {
            may
        } else {
            found.push(Violation::new(
                "arrows",
                &package.manifest,
                0,
                "the package has no row in tidy's table of arrows",
            ));
            continue;
        };
        for used in package.uses.iter().filter(|used| ours.contains_key(used.as_str())) {
            if !may.contains(&used.as_str()) {
                let message = format!("{} may not depend on {used}; it may on {may:?}", package.name);
                found.push(Violation::new("arrows", &package.manifest, 0, message));
            }
        }
    }
    found
}

/// A package's name is its folder's with `synapse-`; the command is `synapse` itself.
pub fn names(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in packages(tree).iter().filter(|p| !p.folder.starts_with("tests/")) {
        let folder = package.folder.rsplit('/').next().unwrap_or(&package.folder);
        let expected = match package.folder.as_str() {
            "host/cli" => "synapse".to_owned(),
            "sdk/cargo-synapse" => "cargo-synapse".to_owned(),
            _ => format!("synapse-{folder}"),
        };
        if package.name != expected {
            let message = format!("the package is {}, its folder asks for {expected}", package.name);
            found.push(Violation::new("package-names", &package.manifest, 0, message));
        }
    }
    found
}

/// Every package takes the workspace's lints.
pub fn lints(tree: &Tree) -> Vec<Violation> {
    let bare = packages(tree).into_iter().filter(|package| !package.inherits_lints);
    let message = "the package does not say `[lints] workspace = true`";
    bare.map(|package| Violation::new("lints", &package.manifest, 0, message))
        .collect()
}

/// Packages outside stay where they are allowed.
pub fn outside(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in packages(tree).iter().filter(|p| !p.folder.starts_with("tests/")) {
        for used in &package.uses {
            if package.name == "synapse-core" && !used.starts_with("synapse-") && !CORE_OUTSIDE.contains(&used.as_str())
            {
                let message = format!("core may not depend on {used}: it has no clock, no I/O and no serialisation");
                found.push(Violation::new("outside", &package.manifest, 0, message));
            } else if let Some((_, may, why)) = OUTSIDE.iter().find(|(name, ..)| name == used)
                && !may.contains(&package.name.as_str())
            {
                let message = format!("{} may not depend on {used}: {why}", package.name);
                found.push(Violation::new("outside", &package.manifest, 0, message));
            }
        }
    }
    found
}

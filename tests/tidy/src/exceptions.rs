//! The named exceptions to the rules, each with its reason. One that excuses nothing any more is a violation.

/// One file that may break one rule.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// The rule's name.
    pub rule: &'static str,
    /// The file.
    pub path: &'static str,
    /// Why.
    pub reason: &'static str,
}

const fn except(rule: &'static str, path: &'static str, reason: &'static str) -> Exception {
    Exception { rule, path, reason }
}

/// The list.
pub const EXCEPTIONS: &[Exception] = &[
    except(
        "processes",
        "plugin-api/build.rs",
        "asks rustc for its version at build time; no part of a running program",
    ),
    except(
        "hosts",
        "Cargo.lock",
        "written by cargo, which names the registry in every entry",
    ),
    except(
        "hosts",
        "catalog/models/all-minilm-l6-v2.toml",
        "the model's page, shown to people and never fetched",
    ),
    except(
        "hosts",
        "catalog/models/smollm2-135m-instruct.toml",
        "the model's page, shown to people and never fetched",
    ),
    except(
        "hosts",
        "host/daemon/src/models/mod.rs",
        "an example in the documentation of the hub's address",
    ),
    except(
        "hosts",
        "host/daemon/src/serve.rs",
        "the hub's address where the environment names no other",
    ),
    except(
        "sleeps",
        "host/daemon/src/worker/tests.rs",
        "a scripted worker that is silent on a real socket for part of a window",
    ),
];

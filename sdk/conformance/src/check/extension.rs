//! Extension tables (PC-60 to PC-64).

use synapse_plugin_api::ext::chat::ChatTable;
use synapse_plugin_api::ext::compiled_shapes::CompiledShapesTable;
use synapse_plugin_api::ext::environment::EnvironmentTable;
use synapse_plugin_api::ext::grammar::GrammarTable;
use synapse_plugin_api::{ExtensionHeader, ExtensionRef, ExtensionTable};

use crate::bench::Bench;
use crate::catalogue::{Check, Level, Outcome, Run, Stop, Verdict, fail, skip};
use crate::check::error::odd_ids;
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "extension-unknown",
        level: Level::Core,
        rules: &["PC-64"],
        says: "An id that nobody defined gives no table, from the library and from every engine.",
        why: "Older and newer sides meet: a table under a wrong id is called as what it is not.",
        fix: "Compare the whole id, revision included, and answer none for all others.",
        run: Run::Library(unknown),
    },
    Check {
        id: "extension-tables",
        level: Level::Core,
        rules: &["PC-60", "PC-61", "PC-62"],
        says: "A table of a known id has that id's length and revision, and is the same every time.",
        why: "Nothing else checks a table before its functions are called.",
        fix: "Fill the header with ExtensionHeader::of, and give out one table for the life of its owner.",
        run: Run::Library(tables),
    },
    Check {
        id: "extension-environment",
        level: Level::Core,
        rules: &["PC-63"],
        says: "synapse.environment/1 answers twice the same, from another thread too, with each device once.",
        why: "The report enters the machine's profile.",
        fix: "Look at the machine each time, keep no state that one call uses up, give devices stable ids.",
        run: Run::Library(environment),
    },
];

/// Runs a body on the lookup of the library and of each engine.
fn lookups(bench: &Bench, body: impl Fn(&str, &dyn Fn(&str) -> Option<ExtensionHeader>) -> Verdict) -> Verdict {
    let module = bench.module()?;
    body("the library", &|id| {
        module.extension()(id.into()).into_option().map(ExtensionRef::header)
    })?;
    let verdict = bench.kinds(&Kind::ALL, |kind| {
        let engine = bench.engine(kind)?;
        body("the engine", &|id| engine.extension(id).map(ExtensionRef::header))
    });
    match verdict {
        // A bundle may offer one kind only, and the library was looked at.
        Err(Stop {
            outcome: Outcome::Skip, ..
        }) => Ok(()),
        verdict => verdict,
    }
}

fn unknown(bench: &Bench) -> Verdict {
    lookups(bench, |whose, find| {
        match odd_ids().iter().find(|id| find(id).is_some()) {
            None => Ok(()),
            Some(id) => {
                let shown: String = id.chars().take(40).collect();
                fail(format!("{whose} has a table for {:?}", shown))
            }
        }
    })
}

fn tables(bench: &Bench) -> Verdict {
    fn one<T: ExtensionTable>(whose: &str, find: &dyn Fn(&str) -> Option<ExtensionHeader>) -> Verdict {
        let Some(first) = find(T::ID) else { return Ok(()) };
        let (found, expected) = (first, ExtensionHeader::of::<T>());
        if found != expected {
            return fail(format!(
                "{whose}, {}: len {} and rev {}, expected {} and {}",
                T::ID,
                found.len,
                found.rev,
                expected.len,
                expected.rev
            ));
        }
        match find(T::ID) {
            Some(again) if again == found => Ok(()),
            _ => fail(format!("{whose}, {}: another answer the second time", T::ID)),
        }
    }
    lookups(bench, |whose, find| {
        one::<ChatTable>(whose, find)?;
        one::<CompiledShapesTable>(whose, find)?;
        one::<EnvironmentTable>(whose, find)?;
        one::<GrammarTable>(whose, find)
    })
}

fn environment(bench: &Bench) -> Verdict {
    let module = bench.module()?;
    let Some(table) = module.extension()(EnvironmentTable::ID.into()).into_option() else {
        return skip("no synapse.environment/1");
    };
    let table: &EnvironmentTable = match table.open() {
        Ok(table) => table,
        Err(error) => return skip(error.to_string()),
    };
    let report = || crate::sys::environment(table);
    let first = match report() {
        Ok(report) => report,
        Err(error) => return skip(format!("the report fails: {error}")),
    };
    let again = std::thread::scope(|scope| scope.spawn(report).join());
    let Ok(Ok(again)) = again else {
        return fail("the second report fails, on another thread");
    };
    let ids = |report: &synapse_plugin_api::ext::environment::EnvironmentReport| {
        report
            .devices
            .iter()
            .map(|device| device.id.to_string())
            .collect::<Vec<_>>()
    };
    let (mut names, again) = (ids(&first), ids(&again));
    if names != again {
        return fail(format!("devices {names:?}, and {again:?} the second time"));
    }
    names.sort();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return fail(format!("two devices have the id {:?}", pair[0]));
    }
    Ok(())
}

//! An operator's worst day: every bad bundle of the zoo in one folder, and a daemon that serves a good one meanwhile.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use synapse_core::digest::sha256;
use synapse_faults::{Stage, kit, zoo};
use synapse_loader::process::{Child, Command, spawner};

use crate::{repository, stage, worker};

/// Ten times what a start takes on a busy machine.
const BOUND: Duration = Duration::from_secs(300);
/// The good bundle, and the model that it serves.
const GOOD: &str = "sound";
const MODEL: &str = "sound-embed";

/// Proves ENG-14: with every bad bundle in its folder the daemon starts, lists each, and serves the good one before,
/// while and after each of the bad ones is asked for.
#[test]
fn the_daemon_serves_among_all_bad_bundles() {
    let stage = stage();
    assert!(zoo::lay_out(&stage).len() > 20);
    for exhibit in kit::LIBRARIES {
        stage.add_kit(&format!("kit-{}", exhibit.mode), exhibit.mode);
        write_model(&stage, &format!("kit-{}", exhibit.mode));
    }
    stage.add_kit(GOOD, "");
    write_model(&stage, GOOD);
    let mut daemon = start(&stage);
    let mut client = connect(&stage.path("s"), &mut daemon);
    wait_until_described(&mut client);
    install(&mut client, &stage, GOOD);
    let right = embed(&mut client, MODEL);
    assert!(right.contains("\"vectors\":[["), "{right}");
    let mut loaded = 0;
    for exhibit in kit::LIBRARIES {
        let id = format!("kit-{}", exhibit.mode);
        let answer = install(&mut client, &stage, &id);
        if answer.contains("\"state\":\"done\"") {
            loaded += 1;
            // Whatever it answers, it is an answer.
            let answer = embed(&mut client, &format!("{id}-embed"));
            assert!(
                answer.contains("\"result\"") || answer.contains("\"error\""),
                "{id}: {answer}"
            );
        }
        let again = embed(&mut client, MODEL);
        assert_eq!(vectors(&again), vectors(&right), "after {id}: {again}");
    }
    // Else nothing bad was ever called, and the test says nothing.
    assert!(
        loaded > kit::LIBRARIES.len() / 2,
        "only {loaded} of the bad bundles loaded a model"
    );
    assert!(call(&mut client, "health", "{}").contains("\"result\""));
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let finished = daemon.wait_with_output(BOUND).expect("it stops when it is told to");
    assert!(finished.status.success(), "{}", finished.status);
}

/// Writes the record, the row and the files of a model that one bundle serves: each engine has the same identity, so a
/// model's format is what ties it to its bundle's lane.
fn write_model(stage: &Stage, bundle: &str) {
    let model = format!("{bundle}-embed");
    let folder = stage.path(&model);
    std::fs::create_dir_all(&folder).expect("a folder");
    let tokenizer = repository().join("plugins/owned/tests/fixtures/bert-embed/tokenizer.json");
    let tokenizer = std::fs::read(tokenizer).expect("a tokenizer");
    let weights = format!("weights of {model}");
    std::fs::write(folder.join("tokenizer.json"), &tokenizer).expect("writes");
    std::fs::write(folder.join("weights.bin"), &weights).expect("writes");
    let record = format!(
        "schema = 1\nid = \"{model}\"\ntitle = \"toy\"\nfamily = \"bert\"\nlicence = \"CC0-1.0\"\nkind = \"embed\"\n\
         dims = 4\npooling = \"mean\"\nnormalize = false\ncontext = 128\nmax_tokens = 128\n\n\
         [tokenizer]\npath = \"tokenizer.json\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[formats]]\nformat = \"bin\"\nquant = \"f32\"\n\n\
         [[formats.files]]\nrole = \"weights\"\npath = \"weights.bin\"\nsha256 = \"{}\"\nsize = {}\n\n\
         [[sources]]\nkind = \"local\"\n",
        sha256(&tokenizer),
        tokenizer.len(),
        sha256(weights.as_bytes()),
        weights.len(),
    );
    let row = format!(
        "schema = 1\n\n[[row]]\nmodel = \"{model}\"\nengine = \"{bundle}\"\nengine_version = \">=0.1, <2\"\n\
         variant = \"f32\"\nformat = \"bin\"\nquant = \"f32\"\ndtype = \"f32\"\nmax_tokens = 128\nmax_batch = 64\n\
         max_batch_tokens = 8192\nmax_sequences = 64\n"
    );
    for (part, text) in [("models", record), ("envelopes", row)] {
        let folder = stage.path("data/catalog").join(part);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(format!("{model}.toml")), text).expect("writes");
    }
}

fn start(stage: &Stage) -> Child {
    let config = stage.path("config.jsonc");
    std::fs::write(&config, "{\"probe\": {\"allow_uncertified\": true}}").expect("writes");
    let (data, socket) = (stage.path("data"), stage.path("s"));
    let command = Command::new(env!("CARGO_BIN_EXE_synapse-daemon-under-test"))
        .args([data.as_path(), &socket, &stage.path("plugins"), &worker()])
        .env("SYNAPSE_CONFIG_PATH", config);
    spawner().spawn(command).expect("the daemon was built")
}

/// Connects as soon as the daemon listens.
fn connect(socket: &Path, daemon: &mut Child) -> UnixStream {
    let started = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            stream.set_read_timeout(Some(BOUND)).expect("a socket");
            return stream;
        }
        let ended = daemon.wait_for_exit(Duration::from_millis(20)).expect("a child");
        assert!(
            ended.is_none() && started.elapsed() < BOUND,
            "the daemon does not listen: {ended:?}"
        );
    }
}

fn call(stream: &mut UnixStream, method: &str, params: &str) -> String {
    let request = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{params}}}\n");
    stream.write_all(request.as_bytes()).expect("the daemon lives");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("the daemon answers");
    line
}

/// The bundles of a start are described in the background.
fn wait_until_described(stream: &mut UnixStream) {
    let started = Instant::now();
    loop {
        let listed = call(stream, "plugins.list", "{}");
        let entry = listed
            .split("{\"id\":")
            .find(|entry| entry.starts_with(&format!("\"{GOOD}\"")));
        if entry.is_some_and(|entry| entry.contains("\"status\":\"ready\"")) {
            return;
        }
        assert!(started.elapsed() < BOUND, "{listed}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Pulls and loads the model of a bundle; how the last job ended.
fn install(stream: &mut UnixStream, stage: &Stage, bundle: &str) -> String {
    let model = format!("{bundle}-embed");
    let path = stage.path(&model);
    let pull = format!(
        "{{\"model\":\"{model}\",\"source\":\"local\",\"path\":\"{}\"}}",
        path.display()
    );
    let pulled = job(stream, "models.pull", &pull);
    if !pulled.contains("\"state\":\"done\"") {
        return pulled;
    }
    job(stream, "model.load", &format!("{{\"model\":\"{model}\"}}"))
}

/// Starts slow work and waits for its end.
fn job(stream: &mut UnixStream, method: &str, params: &str) -> String {
    let answer = call(stream, method, params);
    let Some(id) = answer
        .split("\"job_id\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
    else {
        return answer;
    };
    let params = format!("{{\"job_id\":\"{id}\"}}");
    let started = Instant::now();
    loop {
        let view = call(stream, "job.status", &params);
        let ended = !["queued", "running"]
            .iter()
            .any(|state| view.contains(&format!("\"state\":\"{state}\"")));
        if ended || started.elapsed() > BOUND {
            return view;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn embed(stream: &mut UnixStream, model: &str) -> String {
    let params =
        format!("{{\"model\":\"{model}\",\"text\":\"one good text\",\"deadline_ms\":60000,\"max_queue_ms\":60000}}");
    call(stream, "embed.query", &params)
}

/// The vectors of an answer, as text.
fn vectors(answer: &str) -> &str {
    let rest = answer.split_once("\"vectors\":").map_or("no vectors", |(_, rest)| rest);
    rest.split_once("]]").map_or(rest, |(vectors, _)| vectors)
}

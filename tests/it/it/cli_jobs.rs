//! `synapse embed --file` and `synapse jobs`: a file becomes vectors, whatever ends a command or a daemon midway.
//!
//! The daemon, the worker, the engine and the command are real processes. What is expected comes from `embed.batch` for
//! the same texts.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use synapse_core::digest::sha256;
use synapse_loader::process::{Child, Command, Output, spawner};

use crate::support::HANG;
use crate::support::cli::{Run, synapse};
use crate::support::client::Client;
use crate::support::daemon::{Place, build};
use crate::support::toys::{self, Kind};
use crate::support::vectors::encoded;

const MODEL: &str = "file-toy";

/// A place whose daemon has the model installed; `fault` is one of the reference engine's.
fn place(fault: &str) -> Place {
    let place = Place::new().reference(&[("fault", fault)]);
    toys::write(&place, MODEL, Kind::Embed);
    place
}

/// Short texts of different lengths, no two alike.
fn texts(count: usize) -> Vec<String> {
    (0..count)
        .map(|n| format!("note {n} {}", "of the harbour ".repeat(n % 7)))
        .collect()
}

fn write_lines(place: &Place, name: &str, texts: &[String]) {
    fs::write(place.path().join(name), texts.join("\n") + "\n").expect("writes");
}

/// Starts `synapse embed --file INPUT --out OUTPUT` without waiting for its end.
fn start(place: &Place, input: &str, output: &str) -> Child {
    let command = Command::new(build().join("synapse"))
        .args([
            "embed", "--file", input, "--out", output, "--model", MODEL, "--role", "none", "--socket",
        ])
        .arg(place.socket())
        .env("HOME", place.path())
        .dir(place.path())
        .stdout(Output::Capture { limit: 1 << 20 })
        .stderr(Output::Capture { limit: 1 << 20 });
    spawner().spawn(command).expect("`synapse embed` starts")
}

fn end(child: Child) -> Run {
    let ended = child.wait_with_output(HANG).expect("`synapse embed` ends");
    Run {
        code: ended.status.code().expect("an exit code"),
        stdout: String::from_utf8(ended.stdout).expect("UTF-8"),
        stderr: String::from_utf8(ended.stderr).expect("UTF-8"),
    }
}

fn embed(place: &Place, input: &str, output: &str) -> Run {
    end(start(place, input, output))
}

/// Waits until the only job has embedded something, and gives its view.
fn under_way(client: &mut Client) -> Value {
    let bound = std::time::Instant::now() + HANG;
    loop {
        let list = client.ok("job.list", &json!({}));
        let jobs = list["jobs"].as_array().expect("jobs");
        let batch = jobs.iter().find(|job| job["kind"] == "embed_batch");
        if let Some(job) = batch.filter(|job| job["state"] == "running" && job["progress"]["done"] != 0) {
            return job.clone();
        }
        assert!(std::time::Instant::now() < bound, "no job gets under way: {list}");
        // The socket has no push: jobs are polled.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A NumPy array file of f32, read by the format's definition: its shape, and each row as bytes.
fn npy(path: &Path) -> (usize, usize, Vec<Vec<u8>>) {
    let bytes = fs::read(path).expect("reads");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((10 + length) % 64, 0, "the numbers are aligned");
    let head = std::str::from_utf8(&bytes[10..10 + length]).expect("ASCII");
    assert!(head.contains("'descr': '<f4'") && head.contains("'fortran_order': False") && head.ends_with('\n'));
    let shape = head.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')'));
    let (rows, dims) = shape.and_then(|(shape, _)| shape.split_once(", ")).expect("a shape");
    let (rows, dims): (usize, usize) = (rows.parse().expect("rows"), dims.parse().expect("dims"));
    let data = &bytes[10 + length..];
    assert_eq!(data.len(), rows * dims * 4);
    (rows, dims, data.chunks(dims * 4).map(<[u8]>::to_vec).collect())
}

/// What `embed.batch` gives for the same texts, as bytes.
fn inline(client: &mut Client, texts: &[String]) -> Vec<Vec<u8>> {
    use base64::Engine as _;
    let mut all = Vec::new();
    for part in texts.chunks(64) {
        let items: Vec<(String, &str)> = part
            .iter()
            .enumerate()
            .map(|(n, text)| (n.to_string(), text.as_str()))
            .collect();
        let (vectors, _) = encoded(client, MODEL, &items);
        all.extend(vectors.iter().map(|vector| {
            base64::engine::general_purpose::STANDARD
                .decode(vector)
                .expect("base64")
        }));
    }
    all
}

/// The names in the place's folder that begin with `prefix`, in order.
fn names(place: &Place, prefix: &str) -> Vec<String> {
    let files = fs::read_dir(place.path()).expect("lists").flatten();
    let mut names: Vec<String> = files
        .filter_map(|file| file.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

/// Proves JOB-04. The daemon is killed midway; the command says how to go on; the same command does, with what was
/// committed, and the vectors are those of `embed.batch` in the order of the file.
#[test]
fn a_file_is_embedded_across_a_kill_of_the_daemon() {
    let place = place("none");
    let texts = texts(6_000);
    write_lines(&place, "docs.txt", &texts);
    write_lines(&place, "other.txt", &texts[1..]);
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    let command = start(&place, "docs.txt", "vectors.npy");
    let job = under_way(&mut client);
    daemon.kill();
    let run = end(command);
    assert!([4, 5].contains(&run.code), "{}", run.stderr);
    assert!(run.stderr.contains("texts   6000"), "{}", run.stderr);
    let estimate = run.stderr.find("\ntime    about ").expect("an estimate");
    let first = run.stderr.find("\nsend ").expect("a line of progress");
    assert!(
        estimate < first,
        "what it will take is said before it begins: {}",
        run.stderr
    );
    assert!(
        run.stderr.contains("the same command goes on with it"),
        "{}",
        run.stderr
    );
    assert!(!place.path().join("vectors.npy").exists());

    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let id = &job["job_id"];
    let view = client.ok("job.status", &json!({"job_id": id}));
    assert_eq!(view["state"], "failed_transient", "{view}");
    assert_eq!(view["error"]["code"], "module_restarted", "{view}");
    let done = view["progress"]["done"].as_u64().expect("a number");
    assert!((1..6_000).contains(&done), "midway: {view}");

    let refused = embed(&place, "other.txt", "vectors.npy");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("another input (6000 texts then, 5999 now)"),
        "{}",
        refused.stderr
    );

    let run = embed(&place, "docs.txt", "vectors.npy");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let going_on = format!("going on with the job {}", id.as_str().expect("a name"));
    assert!(
        run.stderr.contains(&going_on) && run.stderr.contains(&format!("{done} are embedded")),
        "{}",
        run.stderr
    );
    assert!(!run.stderr.contains("send "), "nothing is sent twice: {}", run.stderr);
    assert!(!run.stderr.contains("\ntime "), "nothing begins: {}", run.stderr);
    let (rows, dims, vectors) = npy(&place.path().join("vectors.npy"));
    assert_eq!((rows, dims), (6_000, 32));
    assert_eq!(vectors, inline(&mut client, &texts));
    assert_eq!(names(&place, "vectors."), ["vectors.ids.jsonl", "vectors.npy"]);
    let ids = fs::read_to_string(place.path().join("vectors.ids.jsonl")).expect("reads");
    let expected: String = (0..6_000).map(|n| format!("{{\"id\":\"{n}\"}}\n")).collect();
    assert_eq!(ids, expected);
    // The rest was done by one job more, which has the pages of the first.
    let list = client.ok("job.list", &json!({}));
    let jobs = list["jobs"].as_array().expect("jobs").iter();
    let jobs = jobs.filter(|job| job["kind"] == "embed_batch");
    let mut states: Vec<&str> = jobs.filter_map(|job| job["state"].as_str()).collect();
    states.sort_unstable();
    assert_eq!(states, ["done", "failed_transient"], "{list}");
    let again = embed(&place, "docs.txt", "vectors.npy");
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("--yes"), "{}", again.stderr);
}

/// Ctrl-C ends the command and not the job; the same command then fetches what was computed meanwhile.
#[test]
fn ctrl_c_leaves_the_job_to_the_daemon() {
    let place = place("slow");
    let texts = texts(100);
    let lines: String = texts
        .iter()
        .enumerate()
        .map(|(n, text)| format!("{}\n", json!({"id": format!("n-{n}"), "text": text})))
        .collect();
    fs::write(place.path().join("docs.jsonl"), lines).expect("writes");
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    let command = start(&place, "docs.jsonl", "vectors.jsonl");
    let job = under_way(&mut client);
    let pid = i32::try_from(command.pid())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process id"), rustix::process::Signal::INT).expect("is ours");
    let run = end(command);
    assert_eq!(run.code, 130, "{}", run.stderr);
    assert!(run.stderr.contains("goes on in the daemon"), "{}", run.stderr);
    assert!(!place.path().join("vectors.jsonl").exists());
    let view = client.job(&job);
    assert_eq!(view["state"], "done", "{view}");

    let run = embed(&place, "docs.jsonl", "vectors.jsonl");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("100 are embedded"), "{}", run.stderr);
    let written = fs::read_to_string(place.path().join("vectors.jsonl")).expect("reads");
    let written: Vec<Value> = written
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(written.len(), 100);
    let expected = inline(&mut client, &texts);
    for (n, (line, expected)) in written.iter().zip(&expected).enumerate() {
        assert_eq!(line["id"], format!("n-{n}"));
        let values = line["vector"].as_array().expect("a vector").iter();
        #[expect(clippy::cast_possible_truncation, reason = "f32 as text is read back as f64")]
        let bytes: Vec<u8> = values
            .flat_map(|value| (value.as_f64().expect("a number") as f32).to_le_bytes())
            .collect();
        assert_eq!(&bytes, expected, "row {n}");
    }
    assert_eq!(names(&place, "vectors."), ["vectors.jsonl"]);
}

/// A command that ended while it sent: the same command sends only what the open job does not have.
#[test]
fn an_input_that_was_sent_in_part_is_completed() {
    let place = place("none");
    let texts = texts(2_500);
    write_lines(&place, "docs.txt", &texts);
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    // What a command leaves behind that was killed after its first append.
    let options = json!({"role": "none"});
    let create = json!({"operation": "embed.batch", "model": MODEL, "options": options});
    let job = client.ok("job.create", &create);
    let first: Value = texts[..1_000]
        .iter()
        .enumerate()
        .map(|(n, text)| json!({"id": n.to_string(), "text": text}))
        .collect();
    client.ok(
        "job.append",
        &json!({"job_id": job["job_id"], "seq": 0, "items": first}),
    );
    let mut fields = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        for field in [n.to_string().as_bytes(), text.as_bytes()] {
            fields.extend(u64::try_from(field.len()).expect("is small").to_le_bytes());
            fields.extend_from_slice(field);
        }
    }
    let work = json!({"input_sha256": sha256(&fields).to_string(), "items": 2_500, "model": MODEL, "options": options});
    let ticket = json!({"schema": 1, "job_id": job["job_id"], "sealed": false, "work": work});
    fs::write(place.path().join("v.npy.job.json"), ticket.to_string()).expect("writes");

    let run = embed(&place, "docs.txt", "v.npy");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("it has 1000 of 2500 texts"), "{}", run.stderr);
    let view = client.ok("job.status", &json!({"job_id": job["job_id"]}));
    assert_eq!(view["state"], "done", "the job is the one that was open: {view}");
    let (_, _, vectors) = npy(&place.path().join("v.npy"));
    assert_eq!(vectors, inline(&mut client, &texts));
}

/// A text that cannot be embedded is a row of NaN, a line beside the output, and an exit code; a text that was cut is
/// never silent (API-14).
#[test]
fn failed_texts_are_rows_of_nan_and_said() {
    let place = place("none");
    let long = "harbour ".repeat(2_000);
    fs::write(place.path().join("docs.txt"), format!("short\n{long}\nlast\n")).expect("writes");
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    let socketless = ["embed", "--file", "-", "--out", "cut.npy", "--model", MODEL];
    let piped = synapse(&place, &socketless, &format!("a\n{long}\n"));
    assert_eq!(piped.code, 0, "{}", piped.stderr);
    let ids = fs::read_to_string(place.path().join("cut.ids.jsonl")).expect("reads");
    assert_eq!(ids, "{\"id\":\"0\"}\n{\"id\":\"1\",\"truncated\":true}\n");

    let refusing = [
        "embed",
        "--file",
        "docs.txt",
        "--out",
        "v.npy",
        "--model",
        MODEL,
        "--no-truncate",
    ];
    let run = synapse(&place, &refusing, "");
    assert_eq!(run.code, 3, "{}", run.stderr);
    assert!(run.stderr.contains("1 of 3 texts have no vector"), "{}", run.stderr);
    let (_, _, vectors) = npy(&place.path().join("v.npy"));
    let is_nan = |row: &Vec<u8>| {
        row.chunks(4)
            .all(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).is_nan())
    };
    assert_eq!(vectors.iter().map(is_nan).collect::<Vec<_>>(), [false, true, false]);
    let failed = fs::read_to_string(place.path().join("v.failed.jsonl")).expect("reads");
    let failed: Value = serde_json::from_str(&failed).expect("one line");
    assert_eq!((&failed["row"], &failed["id"]), (&json!(1), &json!("1")));
    assert_eq!(failed["error"]["code"], "input_too_long", "{failed}");
    assert_eq!(names(&place, "v."), ["v.failed.jsonl", "v.ids.jsonl", "v.npy"]);
}

/// `synapse jobs` shows what the daemon remembers and stops what runs; an output whose job was cancelled starts anew.
#[test]
fn jobs_are_listed_shown_and_cancelled() {
    let place = place("slow");
    write_lines(&place, "docs.txt", &texts(200));
    let daemon = place.start();
    let mut client = daemon.connect();
    toys::install(&mut client, &place, MODEL);
    let command = start(&place, "docs.txt", "v.npy");
    let job = under_way(&mut client);
    let id = job["job_id"].as_str().expect("a name");
    let listed = synapse(&place, &["jobs", "list"], "");
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let line = listed
        .stdout
        .lines()
        .find(|line| line.starts_with(id))
        .expect("the job's line");
    assert!(
        line.contains("embed batch") && line.contains("running") && line.contains(MODEL),
        "{line}"
    );
    let cancelled = synapse(&place, &["jobs", "cancel", id, "--json"], "");
    assert_eq!(cancelled.lines()[0]["job_id"], id);
    let run = end(command);
    assert_eq!(run.code, 3, "{}", run.stderr);
    assert!(run.stderr.contains("cancelled"), "{}", run.stderr);
    assert_eq!(names(&place, "v."), Vec::<String>::new());
    let shown = synapse(&place, &["jobs", "show", id], "");
    assert!(shown.stdout.contains("state     cancelled"), "{}", shown.stdout);
    let unknown = synapse(&place, &["jobs", "show", "job-0-0"], "");
    assert_eq!(unknown.code, 3, "{}", unknown.stderr);
}

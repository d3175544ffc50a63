//! The hub source: plain HTTP with byte ranges, `{endpoint}/{repo}/resolve/{revision}/{path}`.
//!
//! State: none; partial files lie in the blob store. Callers: `source::fetch`. Not known here: tokens and accounts
//! (gated repositories are refused with words).
//!
//! A connection that ends early is resumed where it stopped. Only tries that bring nothing count against the bound,
//! so a slow but living source is never given up, and a dead one soon is.

use std::io;
use std::time::Duration;

use synapse_catalog::ModelFile;
use ureq::Agent;
use ureq::http::{Response, StatusCode, header};

use super::{Fetch, expected, total};
use crate::models::ModelsError;
use crate::models::store::{Expected, Incoming, check, copy};

/// Tries in a row that bring no byte, before the download fails.
const FRUITLESS_TRIES: u32 = 4;
/// The most tries in all: a source that sends one byte a try must not hold a pull for ever.
const MAX_TRIES: u32 = 1000;
/// The pause before the next try, doubled each time.
const PAUSE: Duration = Duration::from_millis(200);
/// Redirects of one request.
const MAX_REDIRECTS: u32 = 5;

/// Brings the files.
///
/// # Errors
/// [`ModelsError::Download`] when the hub cannot be reached or keeps failing, [`ModelsError::ArtifactInvalid`] when
/// it has another file or none, [`ModelsError::Unsupported`] for a gated repository, [`ModelsError::NoSpace`],
/// [`ModelsError::Storage`], [`ModelsError::Cancelled`].
pub fn fetch(repo: &str, revision: &str, files: &[ModelFile], on: Fetch<'_>) -> Result<(), ModelsError> {
    let all = total(files);
    on.blobs.require_space(all)?;
    let agent = agent(&on.config.hf_endpoint, on.config.idle_timeout);
    let mut before = 0;
    for file in files {
        let url = format!(
            "{}/{repo}/resolve/{revision}/{}",
            on.config.hf_endpoint.trim_end_matches('/'),
            file.path
        );
        let download = Download {
            agent: &agent,
            url,
            expected: expected(file),
            before,
            all,
            on,
        };
        download.run()?;
        before += file.size;
    }
    Ok(())
}

fn agent(endpoint: &str, idle: Duration) -> Agent {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .https_only(endpoint.starts_with("https://"))
        .max_redirects(MAX_REDIRECTS)
        .timeout_resolve(Some(idle))
        .timeout_connect(Some(idle))
        .timeout_recv_response(Some(idle * 2))
        .timeout_per_read(Some(idle))
        // Lengths and ranges are those of the stored bytes.
        .accept_encoding("identity")
        .user_agent(concat!("synapse/", env!("CARGO_PKG_VERSION")));
    // A hub on this machine is not behind a proxy.
    if ["http://127.0.0.1", "http://localhost", "http://[::1]"]
        .iter()
        .any(|local| endpoint.starts_with(local))
    {
        config = config.proxy(None);
    }
    config.build().into()
}

/// One file on its way from the hub.
struct Download<'a> {
    agent: &'a Agent,
    url: String,
    expected: Expected,
    before: u64,
    all: u64,
    on: Fetch<'a>,
}

/// How one try ended.
enum Try {
    /// The file is complete.
    Done,
    /// It ended early; another try may go on.
    Again(ModelsError),
}

impl Download<'_> {
    fn run(&self) -> Result<(), ModelsError> {
        let mut fruitless = 0;
        let mut fresh = false;
        let mut last = None;
        for _ in 0..MAX_TRIES {
            check(self.on.cancel)?;
            let mut into = self.on.blobs.receive(&self.expected, !fresh, self.on.cancel)?;
            fresh = false;
            let (had, resumed) = (into.received(), into.was_resumed());
            match self.once(&mut into) {
                Ok(Try::Done) => match into.finish() {
                    Ok(()) => return Ok(()),
                    // The bytes of an earlier run may be damaged: one try from the start decides.
                    Err(ModelsError::ArtifactInvalid { .. }) if resumed => {
                        fresh = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Ok(Try::Again(error)) => {
                    fruitless = if into.received() > had { 0 } else { fruitless + 1 };
                    last = Some(error);
                    if fruitless >= FRUITLESS_TRIES {
                        break;
                    }
                    if fruitless > 0 {
                        self.pause(PAUSE * (1 << fruitless))?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| self.failed("the source ended every try early")))
    }

    fn failed(&self, reason: impl Into<String>) -> ModelsError {
        ModelsError::Download {
            what: self.url.clone(),
            reason: reason.into(),
        }
    }

    /// Waits, and sees a cancellation meanwhile.
    fn pause(&self, whole: Duration) -> Result<(), ModelsError> {
        let started = std::time::Instant::now();
        while started.elapsed() < whole {
            check(self.on.cancel)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn once(&self, into: &mut Incoming) -> Result<Try, ModelsError> {
        let from = into.received();
        if from == self.expected.size {
            return Ok(Try::Done);
        }
        let mut request = self.agent.get(&self.url);
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(error) => return Ok(Try::Again(self.failed(error.to_string()))),
        };
        match response.status() {
            StatusCode::OK if from > 0 => {
                // The source ignores ranges: begin again.
                *into = self.on.blobs.receive(&self.expected, false, self.on.cancel)?;
                self.body(response, 0, into)
            }
            StatusCode::OK => self.body(response, 0, into),
            StatusCode::PARTIAL_CONTENT => {
                let start = text(&response, header::CONTENT_RANGE).and_then(range_start);
                if start == Some(from) {
                    self.body(response, from, into)
                } else {
                    into.discard();
                    Ok(Try::Again(self.failed(
                        "the source answers with another range than the one asked for",
                    )))
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                into.discard();
                Ok(Try::Again(self.failed("the source has a shorter file")))
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Err(self.expected.invalid(format!("the source has no {}", self.url)))
            }
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(ModelsError::Unsupported(format!(
                "{} answers {status}: the repository is private or gated; download it yourself and pull from that folder",
                self.url
            ))),
            status => Ok(Try::Again(self.failed(format!("the source answers {status}")))),
        }
    }

    fn body(&self, response: Response<ureq::Body>, from: u64, into: &mut Incoming) -> Result<Try, ModelsError> {
        let is_page = text(&response, header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html"));
        if is_page {
            into.discard();
            return Err(self.failed("what arrived looks like HTML: a login page, a portal or an error page"));
        }
        let announced = text(&response, header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        if let Some(length) = announced
            && length.saturating_add(from) != self.expected.size
        {
            into.discard();
            return Err(self.expected.invalid(format!(
                "the source announces {} bytes, expected {}",
                length.saturating_add(from),
                self.expected.size
            )));
        }
        let mut body = response.into_body().into_reader();
        let copied = copy(
            &mut body,
            into,
            self.on.cancel,
            &|error: io::Error| self.failed(error.to_string()),
            &mut |done| self.on.progress.report("download", self.before + done, self.all),
        );
        if into.looks_like_html() {
            into.discard();
            return Err(self.failed("what arrived looks like HTML: a login page, a portal or an error page"));
        }
        match copied {
            Ok(()) if into.received() == self.expected.size => Ok(Try::Done),
            Ok(()) if announced.is_none() => {
                // Nobody said how long it is: its end is its end, and the digest decides.
                Ok(Try::Done)
            }
            Ok(()) => Ok(Try::Again(self.failed("the connection ended early"))),
            Err(error @ ModelsError::Download { .. }) => Ok(Try::Again(error)),
            Err(error) => Err(error),
        }
    }
}

fn text(response: &Response<ureq::Body>, name: header::HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

/// The first byte of a `Content-Range: bytes FIRST-LAST/TOTAL`.
fn range_start(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

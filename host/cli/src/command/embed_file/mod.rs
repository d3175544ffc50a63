//! `synapse embed --file FILE --out OUT`: a file of any size becomes a job, and its vectors a file.
//!
//! This file reads as the command: measure the input, find the job that was begun for it or open one, send what is
//! missing, write pages as they come, finish. It owns nothing beyond one run; what outlives it is the ticket. Whatever
//! ends a run early leaves the job to the daemon and the ticket to the next run.

mod estimate;
mod finish;
mod follow;
#[cfg(feature = "parquet")]
mod parquet_file;
mod places;
mod rows;
mod source;
mod ticket;
mod upload;

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use synapse_client::wire::{ModelKind, ModelsListResult};
use synapse_client::{Client, EmbedJobOptions, ErrorCode, JobCreateParams, JobOperation, JobState};

use self::estimate::Sample;
use self::places::{Places, failed, remove};
use self::rows::{Row, Rows};
use self::source::{Measure, Source};
use self::ticket::{Kept, Ticket, Work};
use crate::args::{Embed, Global};
use crate::error::{CliError, NO_DAEMON, TRANSIENT};
use crate::output::Output;
use crate::progress::Meter;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, bytes, clean, duration};
use crate::table::{Cell, Table};

/// What a run gave.
#[derive(Debug, Serialize)]
struct Summary {
    output: String,
    items: u64,
    failed: u64,
    truncated: u64,
    dims: u32,
    model: String,
    lane: String,
    fingerprint: String,
    job_id: String,
}

/// Embeds the file.
pub async fn run(global: &Global, embed: &Embed, file: &Path, out: &Path, output: &mut Output) -> Result<(), CliError> {
    let places = Places::new(out)?;
    let found = Ticket::read(&places.ticket())?;
    if found.is_none() && !embed.large.yes && out.exists() {
        return Err(CliError::Usage(format!(
            "{} is there already; --yes writes over it",
            out.display()
        )));
    }
    let client = session::open(global, output, Patience::Short).await?;
    let rows = Rows::open(places.rows())?;
    let run = Run {
        client,
        places,
        embed,
        output,
    };
    run.carry_out(file, found, rows).await
}

/// One run, with what all of its steps need.
struct Run<'a> {
    client: Client,
    places: Places,
    embed: &'a Embed,
    output: &'a mut Output,
}

impl Run<'_> {
    async fn carry_out(mut self, file: &Path, found: Option<Ticket>, mut rows: Rows) -> Result<(), CliError> {
        let outcome = self.vectors(file, found, &mut rows).await;
        if outcome.is_err() && !self.places.ticket().exists() {
            // Nothing to go on with: nothing stays.
            rows.discard()?;
            remove(&self.places.ids_of_rows())?;
        }
        let summary = outcome?;
        self.output.value(&summary, render)?;
        if summary.failed == 0 {
            return Ok(());
        }
        Err(CliError::Found(format!(
            "{} of {} texts have no vector; {} says why",
            summary.failed,
            summary.items,
            self.places.failed().display()
        )))
    }

    /// From the input to the finished output.
    async fn vectors(&mut self, file: &Path, found: Option<Ticket>, rows: &mut Rows) -> Result<Summary, CliError> {
        let source = Source::new(file, self.embed.jsonl, self.places.spool())?;
        let (measure, sample) = self.measure(&source)?;
        let list = self.client.models_list().await?.result;
        let model = match &self.embed.model {
            Some(model) => model.clone(),
            None => session::default_model(&list, ModelKind::Embed)?,
        };
        let work = Work {
            input_sha256: measure.digest(),
            items: measure.items,
            model,
            options: options(self.embed),
        };
        rows.expect(work.items)?;
        let (mut kept, sent) = match self.resume(found, &work).await? {
            Some(resumed) => resumed,
            None => {
                let time = sample.estimate(&self.client, &work, !self.embed.no_wait).await;
                let mut facts = plan(&source.name(), &self.places, &measure, &work, &list);
                if let Some(time) = time {
                    facts.fact("time", estimated(time, &sample));
                }
                self.announce(&facts)?;
                (self.create(work).await?, 0)
            }
        };
        let mut meter = Meter::new();
        let outcome = tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => None,
            outcome = work_on(&self.client, &source, &mut kept, sent, rows, &mut meter) => Some(outcome),
        };
        meter.finish();
        match outcome {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(self.give_up(&kept, error).await),
            None => return Err(CliError::Interrupted(interrupted(kept.ticket()))),
        }
        finish::finish(&self.places, rows)?;
        kept.discard()?;
        Ok(summary(&self.places, kept.ticket(), rows))
    }

    /// Reads the input once, and keeps the ids of its rows and a few of its texts.
    fn measure(&self, source: &Source) -> Result<(Measure, Sample), CliError> {
        let path = self.places.ids_of_rows();
        let file = std::fs::File::create(&path).map_err(failed("creating", &path))?;
        let mut ids = io::BufWriter::new(file);
        let (mut measure, mut sample) = (Measure::default(), Sample::default());
        let mut texts = source.texts()?;
        while let Some(item) = texts.next_item()? {
            measure.take(&item);
            sample.take(&item);
            finish::json_line(&mut ids, &path, &finish::RowId { id: item.id })?;
        }
        ids.flush().map_err(failed("writing", &path))?;
        if measure.items == 0 {
            return Err(CliError::Usage(format!("{} has no texts", source.name())));
        }
        Ok((measure, sample))
    }

    /// The job that an earlier run began for this work, with the number of texts that it has; `None` where there is
    /// none that could still give vectors.
    async fn resume(&self, found: Option<Ticket>, work: &Work) -> Result<Option<(Kept, u64)>, CliError> {
        let Some(ticket) = found else { return Ok(None) };
        let place = self.places.ticket();
        ticket.check(&place, work)?;
        let job = ticket.job_id.clone();
        let view = match self.client.job_status(&job).await {
            Ok(view) => view.result,
            Err(error) if error.code() == Some(&ErrorCode::UnknownJob) => {
                self.output.say(&format!(
                    "the daemon does not know the job {job} any more: starting anew"
                ));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let total = work.items;
        let sent = match view.state {
            JobState::Cancelled | JobState::FailedPermanent => {
                let words = format!("the job {job} has ended ({}): starting anew", follow::ended(view));
                self.output.say(&words);
                return Ok(None);
            }
            JobState::Open => {
                let done = view.progress.done;
                let words = format!("going on with the job {job}: it has {done} of {total} texts, the rest is sent");
                self.output.say(&words);
                done
            }
            _ => {
                let done = view.progress.done;
                self.output.say(&format!(
                    "going on with the job {job}: it has all {total} texts, {done} are embedded"
                ));
                total
            }
        };
        let mut kept = Kept::at(place, ticket);
        // The answer to the seal may have been lost.
        kept.change(|ticket| ticket.sealed = view.state != JobState::Open)?;
        Ok(Some((kept, sent)))
    }

    /// Says what is about to be done, and on a terminal asks.
    fn announce(&self, plan: &Table) -> Result<(), CliError> {
        for line in plan.render(Style::plain()).lines() {
            self.output.say(line);
        }
        let asks = !self.embed.large.yes && io::stdin().is_terminal() && io::stderr().is_terminal();
        if !asks {
            return Ok(());
        }
        let mut err = io::stderr().lock();
        let mut answer = String::new();
        write!(err, "start? [Y/n] ")
            .and_then(|()| err.flush())
            .and_then(|()| io::stdin().read_line(&mut answer).map(drop))
            .map_err(|error| CliError::io("asking", error))?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "" | "y" | "yes" => Ok(()),
            _ => Err(CliError::Usage("not started".to_owned())),
        }
    }

    /// Opens a job, and writes down which before the first text is sent.
    async fn create(&self, work: Work) -> Result<Kept, CliError> {
        let params = JobCreateParams {
            operation: JobOperation::EmbedBatch,
            model: work.model.clone(),
            options: work.options.clone(),
            request_key: None,
            weight: None,
        };
        let opened = session::when_loaded(&self.client, !self.embed.no_wait, "opening the job", async || {
            self.client.job_create(&params).await
        })
        .await?;
        let kept = Kept::at(self.places.ticket(), Ticket::new(opened.result.job_id, work));
        kept.write()?;
        Ok(kept)
    }

    /// What an error leaves: a job to go on with, or nothing.
    async fn give_up(&self, kept: &Kept, error: CliError) -> CliError {
        let job = &kept.ticket().job_id;
        let over = matches!(error, CliError::Job(_) | CliError::JobCancelled(_));
        let passes = matches!(error.exit_code(), TRANSIENT | NO_DAEMON) || matches!(error, CliError::Io { .. });
        let hopeless = !kept.ticket().sealed && !passes;
        if !over && !hopeless {
            self.output.say(&format!(
                "the job {job} stays with the daemon: the same command goes on with it"
            ));
            return error;
        }
        if hopeless {
            // Nothing was computed. Should the daemon not hear of it, it forgets the open job by itself.
            let _ = self.client.job_cancel(job).await;
        }
        match kept.discard() {
            Ok(()) => error,
            Err(second) => second,
        }
    }
}

/// Sends what is missing, and writes the pages as they come.
async fn work_on(
    client: &Client,
    source: &Source,
    kept: &mut Kept,
    sent: u64,
    rows: &mut Rows,
    meter: &mut Meter,
) -> Result<(), CliError> {
    if !kept.ticket().sealed {
        let ticket = kept.ticket();
        upload::send(client, &ticket.job_id, source, &ticket.work, sent, meter).await?;
        follow::again(client, kept).await?;
    }
    follow::follow(client, kept, rows, meter).await
}

/// How the texts are embedded, as the command line says it.
fn options(embed: &Embed) -> EmbedJobOptions {
    EmbedJobOptions {
        role: Some(embed.role),
        dimensions: embed.dimensions,
        normalize: embed.no_normalize.then_some(false),
        truncate: embed.no_truncate.then_some(false),
        ..EmbedJobOptions::default()
    }
}

/// What to know before the first text is sent.
fn plan(source: &str, places: &Places, measure: &Measure, work: &Work, list: &ModelsListResult) -> Table {
    let mut facts = Table::facts();
    facts.fact("input", source);
    facts.fact("texts", format!("{} ({})", measure.items, bytes(measure.bytes)));
    facts.fact("model", &work.model);
    let id = work.model.split('@').next().unwrap_or_default();
    let known = list.models.iter().find(|model| model.id == id).map(|model| model.dims);
    let size = match work.options.dimensions.or(known) {
        Some(dims) => {
            let size = measure.items.saturating_mul(u64::from(dims)).saturating_mul(4);
            format!(" ({dims} numbers a text, {} of vectors)", bytes(size))
        }
        None => String::new(),
    };
    facts.fact("output", format!("{}{size}", places.output.display()));
    facts
}

/// The estimate in words: it is one.
fn estimated(time: std::time::Duration, sample: &Sample) -> String {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let texts = sample.len();
    format!(
        "about {}, by {texts} of the texts and if nothing else is to be done",
        duration(milliseconds)
    )
}

/// What Ctrl-C leaves.
fn interrupted(ticket: &Ticket) -> String {
    let job = &ticket.job_id;
    if ticket.sealed {
        format!(
            "interrupted: the job {job} goes on in the daemon; the same command fetches its vectors, and `synapse \
             jobs cancel {job}` stops it"
        )
    } else {
        format!(
            "interrupted while the texts were sent: nothing is computed; the same command sends the rest, and \
             `synapse jobs cancel {job}` gives the job up"
        )
    }
}

fn summary(places: &Places, ticket: &Ticket, rows: &Rows) -> Summary {
    let count = |wanted| {
        let found = rows.fared().iter().filter(|row| **row == wanted).count();
        u64::try_from(found).unwrap_or(u64::MAX)
    };
    let space = rows.space();
    Summary {
        output: places.output.display().to_string(),
        items: ticket.work.items,
        failed: count(Row::Failed),
        truncated: count(Row::Truncated),
        dims: space.map_or(0, |space| space.dims),
        model: ticket.work.model.clone(),
        lane: space.map(|space| space.lane.clone()).unwrap_or_default(),
        fingerprint: space.map(|space| space.fingerprint.clone()).unwrap_or_default(),
        job_id: ticket.job_id.clone(),
    }
}

fn render(summary: &Summary, style: Style) -> String {
    let mut facts = Table::facts();
    facts.fact("vectors", format!("{} × {}", summary.items, summary.dims));
    if summary.truncated > 0 {
        let words = format!("{} texts were longer than the model reads", summary.truncated);
        facts.fact("truncated", Cell::new(Tone::Notice, &words));
    }
    if summary.failed > 0 {
        let words = format!("{} texts have no vector", summary.failed);
        facts.fact("failed", Cell::new(Tone::Bad, &words));
    }
    facts.fact("model", &summary.model);
    facts.fact("lane", &summary.lane);
    facts.fact("fingerprint", &summary.fingerprint);
    format!(
        "{} {}\n{}",
        style.paint(Tone::Good, "wrote"),
        clean(&summary.output),
        facts.render(style)
    )
}

#[cfg(test)]
mod scripted_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(sealed: bool) -> Ticket {
        let mut ticket = Ticket::new(
            "job-1".to_owned(),
            Work {
                input_sha256: "ab".to_owned(),
                items: 3,
                model: "m@e".to_owned(),
                options: EmbedJobOptions::default(),
            },
        );
        ticket.sealed = sealed;
        ticket
    }

    #[test]
    fn an_interruption_says_what_goes_on_and_how_to_stop_it() {
        for (sealed, words) in [(true, "goes on in the daemon"), (false, "nothing is computed")] {
            let text = interrupted(&ticket(sealed));
            assert!(text.contains(words) && text.contains("jobs cancel job-1"), "{text}");
        }
    }

    #[test]
    fn the_plan_says_how_much_goes_in_and_comes_out() {
        let mut measure = Measure::default();
        for text in ["a", "bc"] {
            measure.take(&synapse_client::BatchItem::new("0", text));
        }
        let places = Places::new(Path::new("v.npy")).unwrap();
        let list = ModelsListResult {
            models: Vec::new(),
            free_bytes: None,
        };
        let mut work = ticket(false).work;
        let text = |work: &Work| plan("d.txt", &places, &measure, work, &list).render(Style::plain());
        assert_eq!(
            text(&work),
            "input   d.txt\ntexts   2 (3 B)\nmodel   m@e\noutput  v.npy\n"
        );
        work.options.dimensions = Some(384);
        assert!(
            text(&work).ends_with("output  v.npy (384 numbers a text, 3.0 KiB of vectors)\n"),
            "{}",
            text(&work)
        );
    }
}

//! Misbehaviour on demand: the setting `fault` of `[engine.config]` or of one model names a mode.
//!
//! Owns nothing but the mode. The engines call it at their joints; without a mode every method does nothing. Faults of
//! behaviour try a host's supervision, faults of numbers try its gates: each must be caught by the gate that its
//! comment names.

use std::time::Duration;

use synapse_plugin_sdk::{
    api::ext::environment::{Device, EnvironmentReport, FloorItem},
    prelude::*,
};

use crate::numbers::{Numbers, Pooling, round};

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// A way to misbehave.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Fault {
            /// Does what the contract says.
            #[default]
            None,
            $($(#[$doc])* $variant,)*
        }

        impl Fault {
            /// Every mode's name.
            pub const NAMES: &'static [&'static str] = &["none", $($name),*];

            /// Reads a mode's name.
            ///
            /// # Errors
            /// CONFIG_INVALID naming the value and the modes.
            pub fn parse(name: &str) -> Result<Self, Error> {
                match name {
                    "none" => Ok(Self::None),
                    $($name => Ok(Self::$variant),)*
                    other => {
                        let (other, names) = (other.escape_debug(), Self::NAMES);
                        Err(Error::config_invalid(format!("fault `{other}`, expected one of {names:?}")))
                    }
                }
            }
        }
    };
}

faults! {
    /// `load` panics.
    PanicLoad = "panic_load";
    /// `load` ends the process.
    AbortLoad = "abort_load";
    /// `load` ends the process with exit code 0.
    ExitLoad = "exit_load";
    /// `load` writes to an address that is not mapped.
    SegvLoad = "segv_load";
    /// `load` fails with ARTIFACT_INVALID.
    ErrorLoad = "error_load";
    /// `load` fails with OUT_OF_MEMORY.
    OutOfMemory = "out_of_memory";
    /// `load` takes 100 ms in checkpoints of 1 ms.
    SlowLoad = "slow_load";
    /// `load` never ends.
    HangLoad = "hang_load";
    /// Each compute call panics.
    Panic = "panic";
    /// Each compute call panics with a payload whose destructor panics.
    PanicTwice = "panic_twice";
    /// Each compute call fails with INTERNAL; the engine stays usable.
    Error = "error";
    /// Each compute call fails and says that the model is bad.
    ErrorModelBad = "error_model_bad";
    /// Each compute call fails and says that the engine is bad.
    ErrorEngineBad = "error_engine_bad";
    /// Each compute call fails with a code that no host knows.
    ErrorUnknown = "error_unknown";
    /// Each compute call ends the process by SIGABRT.
    Abort = "abort";
    /// Each compute call ends the process with exit code 0.
    Exit = "exit";
    /// Each compute call writes to an address that is not mapped.
    Segv = "segv";
    /// Each compute call sleeps for ever and asks nobody.
    Hang = "hang";
    /// Every item or token takes 20 ms, with checkpoints.
    Slow = "slow";
    /// As `slow`, but goes on when it is told to cancel.
    IgnoreCancel = "ignore_cancel";
    /// As `slow`, without a single checkpoint.
    NoCheckpoint = "no_checkpoint";
    /// Tells of less work done at each checkpoint.
    Backwards = "backwards";
    /// Leaves the odd rows as it found them and says Ok: the host's canary.
    HalfWritten = "half_written";
    /// Every value is NaN: the host's finite check.
    Nan = "nan";
    /// NaN for items of 7 tokens only: the finite check, over the shapes of the envelope.
    NanShape = "nan_shape";
    /// Every value is infinite: the finite check.
    Infinite = "infinite";
    /// Items are padded to the longest with token 0 and the padding counts: shape invariance.
    MaskIgnored = "mask_ignored";
    /// Padding is not added but counted in the mean's divisor: shape invariance.
    PaddingLeaked = "padding_leaked";
    /// The first token's vector instead of the mean: quality against the reference.
    ClsForMean = "cls_for_mean";
    /// The last token is left out: quality against the reference.
    LastOffByOne = "last_off_by_one";
    /// Values depend on the item's place in the batch: alone against batched.
    OrderDependent = "order_dependent";
    /// Every value is 1e-3 too large: maximal difference of an engine that claims exact f32.
    Drift = "drift";
    /// Values depend on the thread budget: the claim of thread invariance.
    ThreadDependent = "thread_dependent";
    /// Scores have the wrong sign: order of reranking.
    ScoreSign = "score_sign";
}

/// How long one step of a slow mode takes.
const STEP: Duration = Duration::from_millis(20);

impl Fault {
    /// The mode in the plugin's settings.
    ///
    /// # Errors
    /// As [`Fault::parse`].
    pub fn of(setup: &Setup) -> Result<Self, Error> {
        setup.config.get("fault").map_or(Ok(Self::None), Self::parse)
    }

    /// The mode in one model's settings, else this one.
    ///
    /// # Errors
    /// As [`Fault::parse`].
    pub fn or_of(self, config: RuntimeConfig<'_>) -> Result<Self, Error> {
        config.extra("fault").map_or(Ok(self), Self::parse)
    }

    /// What happens at a load.
    ///
    /// # Errors
    /// What the mode says.
    pub fn at_load(self, call: &Call<'_>) -> Result<(), Error> {
        match self {
            Self::PanicLoad => panic!("fault: panic_load"),
            Self::AbortLoad => std::process::abort(),
            Self::ExitLoad => std::process::exit(0),
            Self::SegvLoad => write_nowhere(),
            Self::ErrorLoad => Err(Error::artifact_invalid("fault: error_load")),
            Self::OutOfMemory => Err(Error::out_of_memory("fault: out_of_memory")),
            Self::HangLoad => hang(),
            Self::SlowLoad => (1..=100).try_for_each(|step| {
                std::thread::sleep(Duration::from_millis(1));
                call.checkpoint(step, 100)
            }),
            _ => Ok(()),
        }
    }

    /// What happens at the start of a compute call.
    ///
    /// # Errors
    /// What the mode says.
    pub fn at_call(self, call: &Call<'_>) -> Result<(), Error> {
        match self {
            Self::Panic => panic!("fault: panic"),
            Self::PanicTwice => std::panic::panic_any(PanicsAgain),
            Self::Error => Err(Error::internal("fault: error")),
            Self::ErrorModelBad => Err(Error::internal("fault: error_model_bad").model_bad()),
            Self::ErrorEngineBad => Err(Error::device("fault: error_engine_bad").engine_bad()),
            Self::ErrorUnknown => Err(Error::new(ErrorCode(0x8000_0007), "fault: error_unknown")),
            Self::Abort => std::process::abort(),
            Self::Exit => std::process::exit(0),
            Self::Segv => write_nowhere(),
            Self::Hang => hang(),
            _ => {
                debug!(
                    call.host(),
                    "request {} on {} threads",
                    call.request_id(),
                    call.threads()
                );
                Ok(())
            }
        }
    }

    /// Whether row `i` is not written at all.
    #[must_use]
    pub const fn skips(self, i: usize) -> bool {
        matches!(self, Self::HalfWritten) && !i.is_multiple_of(2)
    }

    /// Spoils row `i` of a batch after it was computed.
    pub fn spoil(
        self,
        numbers: &Numbers,
        pooling: Pooling,
        batch: &TokenBatch<'_>,
        i: usize,
        threads: usize,
        row: &mut [f32],
    ) {
        let item = batch.item(i);
        let longest = batch.items().map(|item| item.ids.len()).max().unwrap_or(0);
        let small = |n: usize| u16::try_from(n).map_or(1e-3, |n| 1e-3 * f32::from(n));
        match self {
            Self::Nan => row.fill(f32::NAN),
            Self::NanShape if item.ids.len() == 7 => row[0] = f32::NAN,
            Self::Infinite => row.fill(f32::INFINITY),
            Self::MaskIgnored => {
                let mut ids = item.ids.to_vec();
                ids.resize(longest, 0);
                round(&numbers.mean(&ids, item.type_ids), row);
            }
            Self::PaddingLeaked => {
                #[expect(clippy::cast_precision_loss, reason = "an item has far fewer than 2^52 tokens")]
                let n = longest as f64;
                round(&numbers.sum(item.ids, item.type_ids).map(|value| value / n), row);
            }
            Self::ClsForMean => numbers.pool(item, Pooling::Cls, row),
            Self::LastOffByOne if item.ids.len() > 1 => {
                let end = item.ids.len() - 1;
                let type_ids = item.type_ids.get(..end).unwrap_or(&[]);
                numbers.pool(
                    Item {
                        ids: &item.ids[..end],
                        type_ids,
                    },
                    pooling,
                    row,
                );
            }
            Self::OrderDependent => row.iter_mut().for_each(|value| *value += small(i)),
            Self::Drift => row.iter_mut().for_each(|value| *value += 1e-3),
            Self::ThreadDependent => row.iter_mut().for_each(|value| *value += small(threads)),
            _ => {}
        }
    }

    /// Spoils a score.
    #[must_use]
    pub fn spoil_score(self, i: usize, score: f32) -> f32 {
        match self {
            Self::ScoreSign => -score,
            Self::Nan => f32::NAN,
            Self::Infinite => f32::INFINITY,
            Self::Drift => score + 1e-3,
            Self::OrderDependent if !i.is_multiple_of(2) => score + 1e-3,
            _ => score,
        }
    }

    /// What happens after an item of `steps` tokens.
    ///
    /// # Errors
    /// CANCELLED.
    pub fn after_item(self, call: &Call<'_>, pace: &mut Pace<'_>, steps: u64) -> Result<(), Error> {
        match self {
            Self::Slow => {
                std::thread::sleep(STEP);
                pace.advance(steps)
            }
            Self::IgnoreCancel => {
                std::thread::sleep(STEP);
                let _ = pace.advance(steps);
                Ok(())
            }
            Self::NoCheckpoint => {
                std::thread::sleep(STEP);
                Ok(())
            }
            Self::Backwards => {
                call.checkpoint(2, 3)?;
                call.checkpoint(1, 3)
            }
            _ => pace.advance(steps),
        }
    }

    /// What happens after a generated token.
    ///
    /// # Errors
    /// CANCELLED.
    pub fn after_token(self, call: &Call<'_>, done: u64, total: u64) -> Result<(), Error> {
        if matches!(self, Self::Slow | Self::IgnoreCancel | Self::NoCheckpoint) {
            std::thread::sleep(STEP);
        }
        match self {
            Self::NoCheckpoint => Ok(()),
            Self::IgnoreCancel => {
                let _ = call.checkpoint(done, total);
                Ok(())
            }
            _ => call.checkpoint(done, total),
        }
    }
}

/// A panic payload that panics again when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("fault: panic_twice");
    }
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn write_nowhere() -> Result<(), Error> {
    let nowhere = std::ptr::without_provenance_mut::<u8>(8);
    // SAFETY: none is claimed: this mode exists to end the process by SIGSEGV. No allocation lies in the first page.
    unsafe { nowhere.write_volatile(1) };
    Err(Error::internal("fault: segv: the first page is mapped"))
}

/// The length of the items whose calls misbehave.
///
/// # Errors
/// CONFIG_INVALID for anything but a number.
pub fn tokens(setup: &Setup) -> Result<Option<usize>, Error> {
    let parse = |text: &str| {
        text.parse()
            .map_err(|_| Error::config_invalid(format!("fault_tokens `{}`, expected a number", text.escape_debug())))
    };
    setup.config.get("fault_tokens").map(parse).transpose()
}

/// What the engine sees of the machine: one device that is always there.
///
/// # Errors
/// None.
pub fn environment() -> Result<EnvironmentReport, Error> {
    let device = Device {
        id: "cpu:0".into(),
        name: "any processor".into(),
        kind: "cpu".into(),
        memory_bytes: 0,
    };
    let floor = FloorItem {
        name: "cpu".into(),
        needed: "any".into(),
        found: "any".into(),
        met: true,
    };
    Ok(EnvironmentReport {
        drivers: Vec::new().into(),
        devices: vec![device].into(),
        floor: vec![floor].into(),
    })
}

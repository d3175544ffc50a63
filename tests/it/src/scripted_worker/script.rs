//! The scripts: one wrong thing each, by the name that the test gives the program's file.
//!
//! State: none. Callers: `main.rs`.

/// What the worker does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// In its handshake, after which it does nothing.
    Start(Start),
    /// In its answer to a request.
    Lie(Lie),
    /// It ends or stops.
    Die(Moment, How),
}

macro_rules! scripts {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

scripts! {
    /// A wrong start.
    Start {
        /// Ends before HELLO, with success.
        Mute = "mute",
        /// Names another nonce.
        StaleNonce = "stale-nonce",
        /// Names another version of its engines.
        WrongIdentity = "wrong-identity",
        /// Names another bundle.
        WrongBundle = "wrong-bundle",
        /// Names another process.
        WrongPid = "wrong-pid",
        /// Speaks version 2.
        OldVersion = "old-version",
        /// Takes only smaller frames than any peer may offer.
        SmallFrame = "small-frame",
        /// Says something else than JSON.
        Garbage = "garbage",
        /// Says PONG before HELLO.
        PongFirst = "pong-first",
        /// Declares a HELLO of 4 GiB.
        HugeHello = "huge-hello",
        /// Says HELLO one byte at a time.
        Drip = "drip-hello",
    }
}

scripts! {
    /// A wrong answer.
    Lie {
        /// None: an honest worker.
        None = "honest",
        /// A raw frame that is shorter than its header declares.
        ShortRaw = "short-raw",
        /// A raw frame that is cut by the end of the stream.
        ShortRawThenEof = "short-raw-then-eof",
        /// A raw frame that is longer.
        LongRaw = "long-raw",
        /// PROGRESS between the header and its raw frame.
        ProgressBeforeRaw = "progress-before-raw",
        /// A frame of 4 GiB.
        Oversize = "oversize",
        /// JSON that ends early.
        BadJson = "bad-json",
        /// A type that the daemon does not know.
        UnknownReply = "unknown-reply",
        /// Another request's number.
        WrongId = "wrong-id",
        /// An error with another request's number.
        ErrorWithWrongId = "error-with-wrong-id",
        /// SCORES for EMBED_BATCH.
        WrongKind = "wrong-kind",
        /// UNLOADED for EMBED_BATCH: a reply that no raw frame follows.
        WrongKindWithoutRaw = "wrong-kind-without-raw",
        /// Two vectors for one item.
        WrongCount = "wrong-count",
        /// Vectors of another length than LOADED said.
        WrongDims = "wrong-dims",
        /// The right answer, twice.
        Duplicate = "duplicate",
        /// The same progress twice.
        Heartbeat = "heartbeat",
        /// Progress of nothing.
        ZeroProgress = "zero-progress",
        /// Progress that goes back.
        BackwardProgress = "backward-progress",
        /// Progress of the exchange before.
        StaleProgress = "stale-progress",
        /// Progress of another phase.
        SetupProgress = "setup-progress",
        /// Progress whose total changes.
        ChangedTotal = "changed-total",
        /// The right answer, one byte at a time.
        Drip = "drip",
        /// No answer.
        Silent = "silent",
        /// An error that gives the engine up.
        EngineBad = "engine-bad",
        /// 20 KiB on standard error, the last line without its end, then SIGABRT.
        LastWords = "last-words",
    }
}

scripts! {
    /// When it ends.
    Moment {
        /// Before the answer to the first LOAD.
        Load = "load",
        /// Before the answer to a request.
        Batch = "batch",
        /// In the middle of an answer's raw frame.
        Raw = "raw",
        /// After the answer, while nothing runs.
        Idle = "idle",
    }
}

scripts! {
    /// How it ends.
    How {
        /// SIGKILL.
        Kill = "kill",
        /// SIGSEGV.
        Segv = "segv",
        /// SIGABRT.
        Abort = "abort",
        /// Exit code 0.
        Exit = "exit",
        /// SIGSTOP: it lives and does nothing more.
        Stop = "stop",
    }
}

impl Script {
    /// The script of a name: one of the above, or `die-MOMENT-HOW`.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some((moment, how)) = name.strip_prefix("die-").and_then(|rest| rest.split_once('-')) {
            return Some(Self::Die(Moment::parse(moment)?, How::parse(how)?));
        }
        let start = Start::parse(name).map(Self::Start);
        start.or_else(|| Lie::parse(name).map(Self::Lie))
    }
}

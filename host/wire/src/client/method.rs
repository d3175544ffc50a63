//! The operations by name, and the tie between a name, its params and its result.
//!
//! No state. `daemon/rpc` matches on [`Method`]; the client and the documentation go through [`Operation`]. What an
//! operation does is not known here.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

macro_rules! methods {
    ($(#[doc = $doc:literal] $variant:ident = $name:literal, $status:literal;)*) => {
        /// Every operation of the client wire. A closed set: an unknown name is answered with -32601.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method {
            $(#[doc = $doc] $variant,)*
        }

        impl Method {
            /// Every operation, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it does, in a sentence. The documentation's headline of the operation.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $doc.trim_ascii(),)* }
            }

            /// Whether the operation answers from state in memory and therefore takes no slot of the connection's
            /// requests in flight (API-03, OQ-1).
            #[must_use]
            pub const fn is_status(self) -> bool {
                match self { $(Self::$variant => $status,)* }
            }
        }

        impl FromStr for Method {
            type Err = UnknownMethod;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(UnknownMethod),
                }
            }
        }
    };
}

methods! {
    /// What this daemon is: versions, paths, limits.
    ServerInfo = "server.info", true;
    /// How it does, from memory only.
    Health = "health", true;
    /// Cancels a request of the same connection.
    RequestCancel = "request.cancel", true;
    /// Embeds one text, on the interactive lane.
    EmbedQuery = "embed.query", false;
    /// Embeds a small batch inline.
    EmbedBatch = "embed.batch", false;
    /// Scores the candidates of a query.
    RerankScore = "rerank.score", false;
    /// Generates a text from a prompt.
    MicrollmOneshot = "microllm.oneshot", false;
    /// Shows how a text becomes token ids.
    TextTokenize = "text.tokenize", false;
    /// The catalog with the state of each model.
    ModelsList = "models.list", true;
    /// Starts a job that fetches and verifies a model.
    ModelsPull = "models.pull", false;
    /// Deletes a model's files.
    ModelsRemove = "models.remove", false;
    /// Starts a job that loads a model into memory.
    ModelLoad = "model.load", false;
    /// The state of one model.
    ModelStatus = "model.status", true;
    /// Frees a loaded model.
    ModelUnload = "model.unload", false;
    /// Opens a job for an input that is too large for one request.
    JobCreate = "job.create", false;
    /// Appends texts to an open job.
    JobAppend = "job.append", false;
    /// Closes a job's input and queues it; a job that failed for now is queued again.
    JobSeal = "job.seal", false;
    /// One page of what a job has done so far.
    JobPages = "job.result", false;
    /// The state of one job.
    JobStatus = "job.status", true;
    /// Asks a job to stop.
    JobCancel = "job.cancel", true;
    /// The jobs that are remembered.
    JobList = "job.list", true;
    /// How busy each lane is, for advice only: queues, bytes, starts, speed.
    AdmissionStatus = "admission.status", true;
    /// Every plugin bundle found, accepted or refused.
    PluginsList = "plugins.list", true;
    /// Looks for dropped, replaced and removed bundles now.
    PluginsRescan = "plugins.rescan", false;
    /// Starts a job that measures lanes on this machine: only a lane that passed may serve.
    ProbeStart = "probe.start", false;
    /// A probe's job with its lanes.
    ProbeStatus = "probe.status", true;
    /// Everything that was measured on this machine.
    ProbeReport = "probe.report", false;
    /// Which lane would serve a model, and why every other would not.
    ModelsExplain = "models.explain", true;
    /// The pairs of numeric spaces that are, or were, equivalent.
    AliasesList = "aliases.list", true;
    /// Declares that two lanes serve equivalent spaces; counts once a probe has measured it.
    AliasesDeclare = "aliases.declare", false;
    /// Retracts an alias.
    AliasesRetract = "aliases.retract", false;
    /// Whether an index may still be written, at one epoch of the alias table.
    AliasesCheckIndex = "aliases.check_index", false;
}

/// The name is not one of [`Method::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMethod;

impl fmt::Display for UnknownMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown method; docs/api lists the operations")
    }
}

impl std::error::Error for UnknownMethod {}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One operation: its name with the types of its params and of its result.
pub trait Operation {
    /// The name.
    const METHOD: Method;
    /// The params, as an object.
    type Params: Serialize + DeserializeOwned + JsonSchema;
    /// The result, without the [`Stamp`](super::Stamp) that the reply adds to it.
    type Result: Serialize + DeserializeOwned + JsonSchema;
}

/// Declares unit types that implement [`Operation`].
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident($params:ty) -> $result:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $crate::client::Operation for $name {
            const METHOD: $crate::client::Method = $crate::client::Method::$name;
            type Params = $params;
            type Result = $result;
        }
    };
}
pub(crate) use operation;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_is_unique() {
        for &method in Method::ALL {
            assert_eq!(method.name().parse(), Ok(method));
            assert_eq!(Method::ALL.iter().filter(|m| m.name() == method.name()).count(), 1);
        }
        assert_eq!("Embed.Query".parse::<Method>(), Err(UnknownMethod));
        assert_eq!("".parse::<Method>(), Err(UnknownMethod));
    }

    #[test]
    fn engine_operations_take_a_slot_and_status_operations_do_not() {
        assert!(!Method::EmbedQuery.is_status());
        assert!(!Method::EmbedBatch.is_status());
        assert!(!Method::RerankScore.is_status());
        assert!(!Method::MicrollmOneshot.is_status());
        assert!(Method::Health.is_status());
        assert!(Method::JobStatus.is_status());
    }
}

//! What every engine-bearing request may demand: the common fields of API-04, declared once for all operations.
//!
//! No state. `engine_params!` gives an operation's params their own fields and the common ones; the daemon reads the
//! latter as [`Constraints`] and evaluates them as a whole before anything happens (API-05). How it does is not known
//! here.

/// Declares the params of an engine-bearing operation: its own fields, and the common ones of API-04.
macro_rules! engine_params {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// How long the whole request may take, in milliseconds from its complete receipt; default 30,000.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub deadline_ms: Option<u64>,
            /// How long it may wait for its start, in milliseconds; default 5,000, at most `deadline_ms`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_queue_ms: Option<u64>,
            /// Refuse at once where the request would wait for readiness (API-08).
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub fail_if_not_ready: bool,
            /// Serve only in this numeric space (API-06): a fingerprint in lower-case hex.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub required_fingerprint: Option<String>,
            /// With `required_fingerprint`: also serve in a space that is certified as equivalent now.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub allow_equivalent: bool,
            /// Serve only while the alias table has this epoch (API-07).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub required_epoch: Option<u64>,
            /// Serve only on this device class, for example `cpu`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub require_device: Option<String>,
        }

        impl $name {
            /// The common fields of API-04.
            #[must_use]
            pub fn constraints(&self) -> $crate::client::Constraints {
                $crate::client::Constraints {
                    deadline_ms: self.deadline_ms,
                    max_queue_ms: self.max_queue_ms,
                    fail_if_not_ready: self.fail_if_not_ready,
                    required_fingerprint: self.required_fingerprint.clone(),
                    allow_equivalent: self.allow_equivalent,
                    required_epoch: self.required_epoch,
                    require_device: self.require_device.clone(),
                }
            }

            /// Sets the common fields of API-04.
            #[must_use]
            pub fn with_constraints(mut self, constraints: $crate::client::Constraints) -> Self {
                self.deadline_ms = constraints.deadline_ms;
                self.max_queue_ms = constraints.max_queue_ms;
                self.fail_if_not_ready = constraints.fail_if_not_ready;
                self.required_fingerprint = constraints.required_fingerprint;
                self.allow_equivalent = constraints.allow_equivalent;
                self.required_epoch = constraints.required_epoch;
                self.require_device = constraints.require_device;
                self
            }
        }
    };
}
pub(crate) use engine_params;

/// What every engine-bearing request may demand (API-04). Evaluated as a whole before anything happens (API-05).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// The whole request's time, in milliseconds from its complete receipt.
    pub deadline_ms: Option<u64>,
    /// The longest wait for the start, in milliseconds.
    pub max_queue_ms: Option<u64>,
    /// Refuse at once instead of waiting for readiness.
    pub fail_if_not_ready: bool,
    /// The one fingerprint to serve with.
    pub required_fingerprint: Option<String>,
    /// Whether spaces equivalent to the required one will do.
    pub allow_equivalent: bool,
    /// The alias table's epoch to serve under.
    pub required_epoch: Option<u64>,
    /// The device class to serve on.
    pub require_device: Option<String>,
}

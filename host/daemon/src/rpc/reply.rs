//! Writes answers: results and errors, each one line with the request's id and the daemon's start number.
//!
//! State: none. Callers: `dispatch` and `connection`. Not known here: sockets.

use serde::Serialize;
use synapse_wire::client::{ErrorData, ErrorObject, Id, Stamp, encode_error, encode_result};

use super::context::{Holds, RequestId};
use super::error::ServiceError;

/// An answer on its way to the client: one line, and what is held until it is written.
#[derive(Debug)]
pub struct Reply {
    /// The line, newline included.
    pub line: Vec<u8>,
    /// What its result holds.
    pub holds: Holds,
}

impl From<Vec<u8>> for Reply {
    /// An answer that holds nothing.
    fn from(line: Vec<u8>) -> Self {
        Self {
            line,
            holds: Holds::default(),
        }
    }
}

/// What every answer carries besides its content (API-13).
#[derive(Clone, Debug)]
pub struct Sender {
    /// The daemon's start number.
    pub generation: u64,
    /// The daemon's name of the request.
    pub request_id: RequestId,
}

impl Sender {
    /// The line of an outcome, newline included.
    #[must_use]
    pub fn outcome<R: Serialize>(&self, id: &Id, outcome: &Result<R, ServiceError>) -> Vec<u8> {
        match outcome {
            Ok(result) => {
                let stamp = Stamp {
                    request_id: self.request_id.to_string(),
                    module_generation: self.generation,
                };
                encode_result(id, &stamp, result).unwrap_or_else(|error| {
                    tracing::error!(target: "synapse", request_id = %self.request_id, "{error}");
                    self.failed(
                        Some(id),
                        &ServiceError::internal("the result could not be written as JSON"),
                    )
                })
            }
            Err(error) => self.failed(Some(id), error),
        }
    }

    /// The line of a failure, newline included; without an id when the request's could not be read.
    #[must_use]
    pub fn failed(&self, id: Option<&Id>, error: &ServiceError) -> Vec<u8> {
        let object = ErrorObject {
            code: error.integer(),
            message: error.message().to_owned(),
            data: ErrorData {
                code: error.code().clone(),
                class: error.class(),
                retry_after_ms: error.retry_after_ms(),
                safe_to_retry_same_request: error.safe_to_retry_same_request(),
                module_generation: self.generation,
                request_id: self.request_id.to_string(),
                detail: error.facts().cloned().map(Box::new),
            },
        };
        // An error object holds strings and integers only, so it always has a JSON form; an empty line is no answer,
        // and the client's deadline then speaks.
        encode_error(id, &object).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::error::TABLE;

    /// Proves ERR-05, API-13. The expected line is put together by hand from each row.
    #[test]
    fn every_code_has_its_golden_line() {
        let sender = Sender {
            generation: 9,
            request_id: RequestId::new(1, 2),
        };
        for row in TABLE {
            let error = ServiceError::new(row.code.clone(), "what");
            let line = String::from_utf8(sender.failed(Some(&Id::from("x")), &error)).unwrap();
            let class = if row.retry_after_ms.is_some() {
                "transient"
            } else {
                "permanent"
            };
            let after = row
                .retry_after_ms
                .map_or_else(String::new, |after| format!("\"retry_after_ms\":{after},"));
            let (integer, code, safe) = (row.integer, &row.code, row.safe_to_retry_same_request);
            let expected = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"error\":{{\"code\":{integer},\"message\":\"what\",\"data\":{{\
                 \"code\":\"{code}\",\"class\":\"{class}\",{after}\"safe_to_retry_same_request\":{safe},\
                 \"module_generation\":9,\"request_id\":\"01-000002\"}}}}}}\n"
            );
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn an_error_without_an_id_says_null() {
        let sender = Sender {
            generation: 1,
            request_id: RequestId::new(255, 1),
        };
        let line = String::from_utf8(sender.failed(None, &ServiceError::parse_error("no JSON"))).unwrap();
        assert!(
            line.contains("\"id\":null") && line.contains("-32700") && line.contains("\"ff-000001\""),
            "{line}"
        );
    }
}

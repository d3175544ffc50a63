//! The examples of errors in docs/api: typed values, as the daemon writes them.

use synapse_wire::client::{Class, ErrorCode, ErrorData, ErrorDetail, ErrorObject, Id};

use crate::examples::MODEL;

/// Each with a title and the request's id.
pub fn all() -> Vec<(&'static str, Option<Id>, ErrorObject)> {
    let error =
        |code: i32, name: ErrorCode, message: &str, retry: Option<u64>, detail: Option<ErrorDetail>| ErrorObject {
            code,
            message: message.to_owned(),
            data: ErrorData {
                class: if retry.is_some() {
                    Class::Transient
                } else {
                    Class::Permanent
                },
                code: name,
                retry_after_ms: retry,
                safe_to_retry_same_request: retry.is_some(),
                module_generation: 1_764_423_000,
                request_id: "7c-000013".to_owned(),
                detail: detail.map(Box::new),
            },
        };
    vec![
        (
            "The line is not JSON",
            None,
            error(
                -32_700,
                ErrorCode::InvalidRequest,
                "the line is not JSON: expected value at line 1 column 1",
                None,
                None,
            ),
        ),
        (
            "A field that the operation does not have",
            Some(Id::Number(1)),
            error(
                -32_602,
                ErrorCode::InvalidRequest,
                "unknown field `txt`, expected one of `model`, `text`, `role`",
                None,
                None,
            ),
        ),
        (
            "A batch over the inline caps",
            Some(Id::Number(2)),
            error(
                -32_019,
                ErrorCode::LimitExceeded,
                "inline.max_items: the request has 65, inline requests take at most 64; send less at a time, or name a request_key and it becomes a job",
                None,
                Some(ErrorDetail {
                    limit: Some("inline.max_items".to_owned()),
                    maximum: Some(64),
                    actual: Some(65),
                    ..ErrorDetail::default()
                }),
            ),
        ),
        (
            "The model is being loaded",
            Some(Id::Number(3)),
            error(
                -32_002,
                ErrorCode::ModelLoading,
                "all-minilm-l6-v2 is not in memory yet; its load has been started; try again in 500 ms",
                Some(500),
                Some(ErrorDetail {
                    model: Some(MODEL.to_owned()),
                    ..ErrorDetail::default()
                }),
            ),
        ),
    ]
}

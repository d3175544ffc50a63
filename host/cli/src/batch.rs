//! Requests that stay under the daemon's inline caps: texts are gathered into batches, and a batch that is refused all
//! the same is halved.
//!
//! It owns the batch being filled. `embed` and `rerank` send their texts this way. What the texts are for is not known
//! here.

use synapse_client::{BatchItem, ErrorCode};

use crate::error::CliError;

/// A batch being filled.
pub struct Batch {
    items: Vec<BatchItem>,
    bytes: u64,
    max_items: usize,
    max_bytes: u64,
}

impl Batch {
    /// An empty batch under caps. A daemon that names no cap has none that this program knows of: the documented ones
    /// (64 texts, 8 MiB) are safe.
    pub fn new(max_items: u32, max_bytes: u64) -> Self {
        let or = |value: u64, default: u64| if value == 0 { default } else { value };
        Self {
            items: Vec::new(),
            bytes: 0,
            max_items: usize::try_from(or(max_items.into(), 64)).unwrap_or(64),
            max_bytes: or(max_bytes, 8 << 20),
        }
    }

    /// Takes one more text, and hands out the batch that was full before it. A repeated id begins a new batch, because
    /// ids are unique within a request.
    pub fn push(&mut self, item: BatchItem) -> Option<Vec<BatchItem>> {
        let bytes = u64::try_from(item.text.byte_len()).unwrap_or(u64::MAX);
        let full = self.items.len() >= self.max_items
            || self.bytes.saturating_add(bytes) > self.max_bytes
            || self.items.iter().any(|other| other.id == item.id);
        let handed = (full && !self.items.is_empty()).then(|| self.rest());
        self.bytes = self.bytes.saturating_add(bytes);
        self.items.push(item);
        handed
    }

    /// Hands out what was gathered.
    pub fn rest(&mut self) -> Vec<BatchItem> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }
}

/// Sends a batch; one that exceeds a cap is halved until it fits. The answers are in the order of the texts.
///
/// # Errors
/// The first error that is not about a cap, or that a single text has.
pub async fn halved<T>(
    items: Vec<BatchItem>,
    send: impl AsyncFn(Vec<BatchItem>) -> Result<T, CliError>,
) -> Result<Vec<T>, CliError> {
    let mut waiting = vec![items];
    let mut answers = Vec::new();
    while let Some(mut items) = waiting.pop() {
        match send(items.clone()).await {
            Ok(answer) => answers.push(answer),
            Err(error) if items.len() > 1 && is_over_a_cap(&error) => {
                let later = items.split_off(items.len() / 2);
                waiting.push(later);
                waiting.push(items);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

fn is_over_a_cap(error: &CliError) -> bool {
    matches!(error, CliError::Client(error) if error.code() == Some(&ErrorCode::LimitExceeded))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use synapse_client::ClientError;
    use synapse_client::wire::{Class, ErrorData, ErrorObject};

    use super::*;

    #[test]
    fn batches_stay_under_the_caps_and_keep_ids_apart() {
        let mut batch = Batch::new(3, 10);
        let mut sizes = Vec::new();
        for (id, length) in [
            ("a", 1),
            ("b", 1),
            ("c", 1),
            ("d", 9),
            ("e", 1),
            ("f", 1),
            ("f", 1),
            ("g", 99),
            ("h", 1),
        ] {
            let handed = batch.push(BatchItem::new(id, "x".repeat(length)));
            sizes.extend(handed.map(|items| items.len()));
        }
        sizes.push(batch.rest().len());
        // a b c | d e | f | f | g | h: by items, bytes, bytes, id, bytes, bytes.
        assert_eq!(sizes, [3, 2, 1, 1, 1, 1]);
        assert!(batch.rest().is_empty());
        assert_eq!(Batch::new(0, 0).max_items, 64);
    }

    fn refused(code: ErrorCode) -> CliError {
        CliError::Client(ClientError::Daemon(Box::new(ErrorObject {
            code: -32_019,
            message: String::new(),
            data: ErrorData {
                code,
                class: Class::Permanent,
                retry_after_ms: None,
                safe_to_retry_same_request: false,
                module_generation: 1,
                request_id: String::new(),
                detail: None,
            },
        })))
    }

    fn five() -> Vec<BatchItem> {
        (0..5).map(|id| BatchItem::new(id.to_string(), "x")).collect()
    }

    #[tokio::test]
    async fn what_is_over_a_cap_is_halved_in_order_and_anything_else_ends_it() {
        let sent = RefCell::new(Vec::new());
        let answers = halved(five(), async |items| {
            sent.borrow_mut().push(items.len());
            if items.len() > 2 {
                return Err(refused(ErrorCode::LimitExceeded));
            }
            Ok(items.into_iter().map(|item| item.id).collect::<Vec<_>>())
        });
        assert_eq!(answers.await.unwrap().concat(), ["0", "1", "2", "3", "4"]);
        assert_eq!(*sent.borrow(), [5, 2, 3, 1, 2]);
        for (code, attempts) in [(ErrorCode::LimitExceeded, 3), (ErrorCode::UnknownModel, 1)] {
            let sent = RefCell::new(0);
            let outcome = halved(five(), async |_| {
                *sent.borrow_mut() += 1;
                Err::<(), _>(refused(code.clone()))
            });
            assert!(outcome.await.is_err());
            // 5, then 2, then the single one that cannot be halved.
            assert_eq!(*sent.borrow(), attempts, "{code}");
        }
    }
}

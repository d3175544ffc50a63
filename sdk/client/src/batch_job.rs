//! Jobs over inputs of any size: opened, filled and sealed, then read page by page while they run (API-11).
//!
//! No state. Each method is [`Client::call`] with its types; a page's vectors are decoded and its shape is checked. How
//! an input is cut into appends, and which pages were read already, is the caller's affair.

use synapse_wire::client::{
    BatchItem, JobAccepted, JobAppend, JobAppendParams, JobAppendResult, JobCreate, JobCreateParams, JobPage, JobPages,
    JobParams, JobResultParams, JobSeal, JobState, JobView, Stamped, Vector,
};

use crate::client::Client;
use crate::error::ClientError;

/// One look at a job's pages.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRead {
    /// Where the job stood when the page was looked for: once it has ended, no further page comes.
    pub state: JobState,
    /// Pages that there were.
    pub pages: u64,
    /// The page; `None` where it is not there, or not there yet.
    pub page: Option<EmbeddedPage>,
}

/// One page of an embedding job with its vectors decoded. Its items stand in the order in which they were computed,
/// so an item is known by its id.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddedPage {
    /// One vector of `page.dims` values per item of `page.items`; `None` for an item that failed.
    pub vectors: Vec<Option<Vec<f32>>>,
    /// The rest of the page; its own `vectors` were moved out.
    pub page: JobPage,
}

impl EmbeddedPage {
    fn decode(mut page: JobPage) -> Result<Self, ClientError> {
        if page.vectors.len() != page.items.len() {
            return Err(ClientError::Protocol(format!(
                "a page has {} items and {} vectors",
                page.items.len(),
                page.vectors.len()
            )));
        }
        let vectors = decode_vectors(std::mem::take(&mut page.vectors), page.dims)?;
        Ok(Self { vectors, page })
    }
}

/// The values of vectors that must all have `dims` of them.
pub(crate) fn decode_vectors(vectors: Vec<Option<Vector>>, dims: u32) -> Result<Vec<Option<Vec<f32>>>, ClientError> {
    let expected = usize::try_from(dims).unwrap_or(usize::MAX);
    let decode = |vector: Vector| {
        let values = vector
            .into_values()
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        if values.len() == expected {
            Ok(values)
        } else {
            Err(ClientError::Protocol(format!(
                "a vector has {} values, the reply says {dims}",
                values.len()
            )))
        }
    };
    vectors
        .into_iter()
        .map(|vector| vector.map(decode).transpose())
        .collect()
}

impl Client {
    /// `job.create`: opens a job that then takes texts. It is not sent again where the connection ended before the
    /// answer: that could leave a second open job, which the daemon forgets only after an hour.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn job_create(&self, params: &JobCreateParams) -> Result<Stamped<JobAccepted>, ClientError> {
        self.call::<JobCreate>(params).await
    }

    /// `job.append`: adds texts to an open job. `seq` numbers the appends of a job from 0; the texts are on the disk
    /// when this answers. The daemon knows an append again by its number and its texts, so one whose answer was lost
    /// is sent again and kept once. One line holds at most 16 MiB.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Request`] for more texts than a line holds. An append before its turn is no
    /// error: `kept` is then false, and `next_seq` says which is awaited.
    pub async fn job_append(
        &self,
        job_id: &str,
        seq: u64,
        items: Vec<BatchItem>,
    ) -> Result<Stamped<JobAppendResult>, ClientError> {
        let params = JobAppendParams {
            job_id: job_id.to_owned(),
            seq,
            items,
        };
        self.call::<JobAppend>(&params).await
    }

    /// `job.seal`: closes a job's input and queues it, or queues a job again that failed for now. The answer shows the
    /// job that does the work; its id may be another. Sealing twice does nothing twice, so a seal whose answer was lost
    /// is sent again; only where the job's `request_key` names another job is the sealed one gone by then
    /// (`unknown_job`).
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn job_seal(&self, job_id: &str) -> Result<Stamped<JobView>, ClientError> {
        let params = JobParams {
            job_id: job_id.to_owned(),
        };
        self.call::<JobSeal>(&params).await
    }

    /// `job.result`: the page with this number, from 0, if it is there. Pages can be read while the job runs and for as
    /// long as the daemon remembers it. Vectors travel in the client's encoding.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Protocol`] for a page whose vectors do not fit its items.
    pub async fn job_page(&self, job_id: &str, page: u64) -> Result<PageRead, ClientError> {
        let params = JobResultParams {
            job_id: job_id.to_owned(),
            page,
            encoding: Some(self.options().encoding),
        };
        let found = self.call::<JobPages>(&params).await?.result;
        Ok(PageRead {
            state: found.state,
            pages: found.pages,
            page: found.content.map(EmbeddedPage::decode).transpose()?,
        })
    }
}

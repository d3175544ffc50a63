//! One typed method per operation; those that fill and read large jobs stand in [`crate::batch_job`].
//!
//! No state. Each method is [`Client::call`] with its types; the embedding ones also ask for the client's encoding and
//! decode the vectors, and those with several texts check that the reply has the request's shape.

use synapse_wire::client::{
    AdmissionStatus, AdmissionStatusParams, AdmissionStatusResult, BatchItem, EmbedBatch, EmbedBatchParams,
    EmbedBatchResult, EmbedQuery, EmbedQueryParams, EmbedReply, Health, HealthParams, HealthResult, JobAccepted,
    JobCancel, JobList, JobListParams, JobListResult, JobParams, JobStatus, JobView, MicrollmOneshot,
    MicrollmOneshotParams, MicrollmOneshotResult, ModelLoad, ModelParams, ModelStatus, ModelStatusResult, ModelUnload,
    ModelUnloadResult, ModelsList, ModelsListParams, ModelsListResult, ModelsPull, ModelsPullParams, ModelsRemove,
    ModelsRemoveResult, PluginsList, PluginsListParams, PluginsListResult, PluginsRescan, PluginsRescanParams,
    PluginsRescanResult, ProbeReport, ProbeReportParams, ProbeReportResult, ProbeStart, ProbeStartParams, ProbeStatus,
    ProbeStatusParams, ProbeStatusResult, RerankReply, RerankScore, RerankScoreParams, RerankScoreResult, ServerInfo,
    ServerInfoParams, ServerInfoResult, Stamp, Stamped, TextTokenize, TokenizeParams, TokenizeResult,
};

use crate::batch_job::decode_vectors;
use crate::client::Client;
use crate::error::ClientError;

/// An embedding reply with its vectors decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// Request id and module generation.
    pub stamp: Stamp,
    /// One vector per item, in the request's order; `None` for an item that failed (see `reply.items`).
    pub vectors: Vec<Option<Vec<f32>>>,
    /// The rest of the reply; its own `vectors` were moved out.
    pub reply: EmbedReply,
}

/// What an `embed.batch` gave.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchOutcome {
    /// Vectors, inline.
    Vectors(Box<Embedded>),
    /// The batch was over the inline caps and had a `request_key`: it became a job.
    Job(JobAccepted),
}

/// A reranking reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reranked {
    /// Request id and module generation.
    pub stamp: Stamp,
    /// Raw scores and outcomes, in the request's order.
    pub reply: RerankReply,
}

/// What a `rerank.score` gave.
#[derive(Clone, Debug, PartialEq)]
pub enum RerankOutcome {
    /// Scores, inline.
    Scores(Box<Reranked>),
    /// The request was over the inline caps and had a `request_key`: it became a job.
    Job(JobAccepted),
}

impl Reranked {
    /// Takes a reply to `expected` candidates.
    fn check(stamp: Stamp, reply: RerankReply, expected: usize) -> Result<Self, ClientError> {
        let lengths = [reply.scores.len(), reply.items.len(), reply.real_token_counts.len()];
        if lengths != [expected; 3] {
            return Err(ClientError::Protocol(format!(
                "{expected} candidates were sent; the reply has {} scores, {} items and {} token counts",
                lengths[0], lengths[1], lengths[2]
            )));
        }
        Ok(Self { stamp, reply })
    }

    /// The positions of the candidates that have a score, the best first; equal scores keep the request's order.
    #[must_use]
    pub fn ranking(&self) -> Vec<usize> {
        let scores = &self.reply.scores;
        let mut positions: Vec<usize> = (0..scores.len())
            .filter(|&position| scores[position].is_some())
            .collect();
        let score = |position: usize| scores[position].unwrap_or(f32::NEG_INFINITY);
        positions.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        positions
    }
}

impl Embedded {
    /// Decodes a reply to `expected` items.
    fn decode(stamp: Stamp, mut reply: EmbedReply, expected: usize) -> Result<Self, ClientError> {
        let lengths = [reply.vectors.len(), reply.items.len(), reply.real_token_counts.len()];
        if lengths != [expected; 3] {
            return Err(ClientError::Protocol(format!(
                "{expected} items were sent; the reply has {} vectors, {} items and {} token counts",
                lengths[0], lengths[1], lengths[2]
            )));
        }
        let vectors = decode_vectors(std::mem::take(&mut reply.vectors), reply.dims)?;
        Ok(Self { stamp, vectors, reply })
    }
}

impl Client {
    /// `server.info`: versions, paths, limits.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn server_info(&self) -> Result<Stamped<ServerInfoResult>, ClientError> {
        self.call::<ServerInfo>(&ServerInfoParams {}).await
    }

    /// `health`: how the daemon does.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn health(&self) -> Result<Stamped<HealthResult>, ClientError> {
        self.call::<Health>(&HealthParams {}).await
    }

    /// `admission.status`: how busy each lane is.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn admission_status(&self) -> Result<Stamped<AdmissionStatusResult>, ClientError> {
        self.call::<AdmissionStatus>(&AdmissionStatusParams {}).await
    }

    /// `embed.query`: one text, on the interactive lane.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Protocol`] for a reply that does not have the request's shape.
    pub async fn embed_query(&self, mut params: EmbedQueryParams) -> Result<Embedded, ClientError> {
        params.encoding.get_or_insert(self.options().encoding);
        let answer = self.call::<EmbedQuery>(&params).await?;
        Embedded::decode(answer.stamp, answer.result, 1)
    }

    /// `embed.batch`: up to 64 texts inline.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Protocol`] for a reply that does not have the request's shape.
    pub async fn embed_batch(&self, mut params: EmbedBatchParams) -> Result<BatchOutcome, ClientError> {
        params.encoding.get_or_insert(self.options().encoding);
        let answer = self.call::<EmbedBatch>(&params).await?;
        Ok(match answer.result {
            EmbedBatchResult::Vectors(reply) => {
                BatchOutcome::Vectors(Box::new(Embedded::decode(answer.stamp, *reply, params.items.len())?))
            }
            EmbedBatchResult::Accepted(job) => BatchOutcome::Job(job),
        })
    }

    /// `embed.batch` of texts whose ids are their positions, with everything else by default.
    ///
    /// # Errors
    /// As [`Client::embed_batch`].
    pub async fn embed_texts<S: AsRef<str>>(&self, model: &str, texts: &[S]) -> Result<Box<Embedded>, ClientError> {
        match self.embed_batch(EmbedBatchParams::new(model, numbered(texts))).await? {
            BatchOutcome::Vectors(embedded) => Ok(embedded),
            BatchOutcome::Job(job) => Err(without_key(&job)),
        }
    }

    /// `rerank.score`: one raw score for each candidate of a query.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Protocol`] for a reply that does not have the request's shape.
    pub async fn rerank_score(&self, params: &RerankScoreParams) -> Result<RerankOutcome, ClientError> {
        let answer = self.call::<RerankScore>(params).await?;
        Ok(match answer.result {
            RerankScoreResult::Scores(reply) => RerankOutcome::Scores(Box::new(Reranked::check(
                answer.stamp,
                *reply,
                params.candidates.len(),
            )?)),
            RerankScoreResult::Accepted(job) => RerankOutcome::Job(job),
        })
    }

    /// `rerank.score` of texts whose ids are their positions, with everything else by default.
    ///
    /// # Errors
    /// As [`Client::rerank_score`].
    pub async fn rerank_texts<S: AsRef<str>>(
        &self,
        model: &str,
        query: &str,
        texts: &[S],
    ) -> Result<Box<Reranked>, ClientError> {
        match self
            .rerank_score(&RerankScoreParams::new(model, query, numbered(texts)))
            .await?
        {
            RerankOutcome::Scores(reranked) => Ok(reranked),
            RerankOutcome::Job(job) => Err(without_key(&job)),
        }
    }

    /// `microllm.oneshot`: a text from a prompt.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn oneshot(&self, params: &MicrollmOneshotParams) -> Result<Stamped<MicrollmOneshotResult>, ClientError> {
        self.call::<MicrollmOneshot>(params).await
    }

    /// `text.tokenize`: how a text becomes token ids.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn tokenize(&self, params: &TokenizeParams) -> Result<Stamped<TokenizeResult>, ClientError> {
        self.call::<TextTokenize>(params).await
    }

    /// `models.list`: the catalog with the state of each model.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn models_list(&self) -> Result<Stamped<ModelsListResult>, ClientError> {
        self.call::<ModelsList>(&ModelsListParams {}).await
    }

    /// `models.pull`: starts a job that fetches and verifies a model.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn models_pull(&self, params: &ModelsPullParams) -> Result<Stamped<JobAccepted>, ClientError> {
        self.call::<ModelsPull>(params).await
    }

    /// `models.remove`: deletes a model's files.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn models_remove(&self, model: &str) -> Result<Stamped<ModelsRemoveResult>, ClientError> {
        self.call::<ModelsRemove>(&model_params(model)).await
    }

    /// `model.load`: starts a job that loads a model into memory.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn model_load(&self, model: &str) -> Result<Stamped<JobAccepted>, ClientError> {
        self.call::<ModelLoad>(&model_params(model)).await
    }

    /// `model.status`: the state of one model.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn model_status(&self, model: &str) -> Result<Stamped<ModelStatusResult>, ClientError> {
        self.call::<ModelStatus>(&model_params(model)).await
    }

    /// `model.unload`: frees a loaded model.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn model_unload(&self, model: &str) -> Result<Stamped<ModelUnloadResult>, ClientError> {
        self.call::<ModelUnload>(&model_params(model)).await
    }

    /// `job.status`: the state of one job.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn job_status(&self, job_id: &str) -> Result<Stamped<JobView>, ClientError> {
        self.call::<JobStatus>(&job_params(job_id)).await
    }

    /// `job.cancel`: asks a job to stop.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn job_cancel(&self, job_id: &str) -> Result<Stamped<JobView>, ClientError> {
        self.call::<JobCancel>(&job_params(job_id)).await
    }

    /// `job.list`: the jobs that are remembered.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn job_list(&self) -> Result<Stamped<JobListResult>, ClientError> {
        self.call::<JobList>(&JobListParams {}).await
    }

    /// `probe.start`: starts a job that measures lanes on the daemon's machine.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn probe_start(&self, params: &ProbeStartParams) -> Result<Stamped<JobAccepted>, ClientError> {
        self.call::<ProbeStart>(params).await
    }

    /// `probe.status`: a probe's job with its lanes.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn probe_status(&self, params: &ProbeStatusParams) -> Result<Stamped<ProbeStatusResult>, ClientError> {
        self.call::<ProbeStatus>(params).await
    }

    /// `probe.report`: everything that was measured on the daemon's machine.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn probe_report(&self, params: &ProbeReportParams) -> Result<Stamped<ProbeReportResult>, ClientError> {
        self.call::<ProbeReport>(params).await
    }

    /// `plugins.list`: every plugin bundle found, accepted or refused.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn plugins_list(&self) -> Result<Stamped<PluginsListResult>, ClientError> {
        self.call::<PluginsList>(&PluginsListParams {}).await
    }

    /// `plugins.rescan`: looks for dropped, replaced and removed bundles now.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn plugins_rescan(&self) -> Result<Stamped<PluginsRescanResult>, ClientError> {
        self.call::<PluginsRescan>(&PluginsRescanParams {}).await
    }
}

/// Texts as items whose ids are their positions.
fn numbered<S: AsRef<str>>(texts: &[S]) -> Vec<BatchItem> {
    texts
        .iter()
        .enumerate()
        .map(|(position, text)| BatchItem::new(position.to_string(), text.as_ref()))
        .collect()
}

/// Only a request with a key may become a job.
fn without_key(job: &JobAccepted) -> ClientError {
    ClientError::Protocol(format!("a request without request_key became the job {}", job.job_id))
}

fn model_params(model: &str) -> ModelParams {
    ModelParams {
        model: model.to_owned(),
    }
}

fn job_params(job_id: &str) -> JobParams {
    JobParams {
        job_id: job_id.to_owned(),
    }
}

//! What the kinds of jobs over texts do with their texts: which lane, which tokens, which work, which page.
//!
//! State: none; a [`BatchKind`] is a job's stored request, read. Caller: `batch_job.rs`, whose windows, calls and pages are
//! the same for all kinds. Not known here: the store, the order of calls.

use std::future::Future;
use std::sync::Arc;

use synapse_catalog::Record;
use synapse_core::engine::EngineKind;
use synapse_wire::client::{
    EmbedJobOptions, Encoding, ItemOutcome, JobPage, Provenance, RerankJobOptions, Role, ScorePage, StoredError, Vector,
};

use super::admission::{Admitted, Demand, admit};
use super::{RequestContext, ServiceError, call, rerank_score};
use crate::lane::loaded::Loaded;
use crate::lane::work::{EmbedWork, RerankWork, Results};
use crate::lane::{output, profile};
use crate::schedule::Work;
use crate::state::Daemon;
use crate::text::{Encoded, EncodedPair, Limits, TextError};

/// Why a text became no tokens.
pub(super) enum NotEncoded {
    /// That text alone.
    Text(ServiceError),
    /// It would be the same for every text.
    Job(ServiceError),
}

/// A kind of job over texts.
pub(super) trait BatchKind: Send + Sync + Sized + 'static {
    /// The name of the work in progress reports.
    const PHASE: &'static str;
    /// A text as the engine takes it.
    type Text: Send + Sync + 'static;
    /// What the engine makes of one.
    type Made: Send + 'static;
    /// What is kept of that.
    type Served: Send;
    /// The calls of a window.
    type Work: Work<Output = Vec<Self::Made>>;

    /// Reads the request as it is kept.
    ///
    /// # Errors
    /// [`StoredError`].
    fn read(request: &str) -> Result<Self, StoredError>;

    /// The lane that serves the job now.
    ///
    /// # Errors
    /// As for a request.
    fn admit(
        &self,
        daemon: &Arc<Daemon>,
        ctx: &RequestContext,
        model: &str,
    ) -> impl Future<Output = Result<Admitted, ServiceError>> + Send;

    /// Cut or refuse texts that are too long, as asked.
    fn truncate(&self) -> Option<bool>;

    /// Tokenizes one text.
    ///
    /// # Errors
    /// [`NotEncoded`].
    fn encode(&self, loaded: &Loaded, text: &str, limits: Limits) -> Result<Self::Text, NotEncoded>;

    /// The tokens of a text.
    fn tokens(text: &Self::Text) -> &Encoded;

    /// Bytes that the engine's result of one text takes.
    fn result_bytes(admitted: &Admitted) -> u64;

    /// The engine calls on these texts.
    fn work(admitted: &Admitted, texts: Arc<[Self::Text]>, results: Results<Self::Made>) -> Self::Work;

    /// What is kept of a result.
    ///
    /// # Errors
    /// It is not finite.
    fn serve(made: Self::Made, admitted: &Admitted) -> Result<Self::Served, ServiceError>;

    /// About what a result takes in a page, in bytes.
    fn page_bytes(served: &Self::Served) -> usize;

    /// A page in the form in which it is kept.
    fn page(&self, admitted: &Admitted, items: Vec<ItemOutcome>, served: Vec<Option<Self::Served>>) -> Vec<u8>;

    /// The numeric space of a kept page.
    ///
    /// # Errors
    /// [`StoredError`].
    fn space(page: &[u8]) -> Result<String, StoredError>;
}

impl BatchKind for EmbedJobOptions {
    const PHASE: &'static str = "embed";
    type Text = Encoded;
    type Made = Vec<f32>;
    type Served = Vec<f32>;
    type Work = EmbedWork;

    fn read(request: &str) -> Result<Self, StoredError> {
        Self::from_text(request)
    }

    async fn admit(&self, daemon: &Arc<Daemon>, ctx: &RequestContext, model: &str) -> Result<Admitted, ServiceError> {
        let demand = Demand {
            model,
            kind: EngineKind::Embed,
            constraints: &self.constraints(),
            target_fingerprint: self.target_fingerprint.as_deref(),
            query: false,
        };
        let shape = |record: &Record| profile::served_shape(record, self.dimensions, self.normalize);
        admit(daemon, ctx, demand, shape).await
    }

    fn truncate(&self) -> Option<bool> {
        self.truncate
    }

    fn encode(&self, loaded: &Loaded, text: &str, limits: Limits) -> Result<Encoded, NotEncoded> {
        let role = self.role.unwrap_or(Role::Document);
        let template = (role != Role::None)
            .then(|| loaded.templates.get(role.as_str()))
            .flatten();
        let encoded = loaded.tokenizer.encode(text, template, limits);
        let mut encoded = encoded.map_err(|error| NotEncoded::Text(error.into()))?;
        // Nobody asks where a token lies in the text.
        encoded.offsets = Vec::new();
        Ok(encoded)
    }

    fn tokens(text: &Encoded) -> &Encoded {
        text
    }

    fn result_bytes(admitted: &Admitted) -> u64 {
        u64::from(admitted.loaded.model.dims) * 4
    }

    fn work(admitted: &Admitted, texts: Arc<[Encoded]>, results: Results<Vec<f32>>) -> EmbedWork {
        EmbedWork::new(&admitted.loaded, texts, call::envelope(admitted), results)
    }

    fn serve(made: Vec<f32>, admitted: &Admitted) -> Result<Vec<f32>, ServiceError> {
        output::serve(&made, admitted.shape).map_err(|error| ServiceError::non_finite_output(error.to_string()))
    }

    fn page_bytes(served: &Vec<f32>) -> usize {
        served.len() * 16 / 3
    }

    fn page(&self, admitted: &Admitted, items: Vec<ItemOutcome>, served: Vec<Option<Vec<f32>>>) -> Vec<u8> {
        let role = self.role.unwrap_or(Role::Document);
        let vector = |values: Option<Vec<f32>>| values.map(|values| Vector::encode(&values, Encoding::Base64));
        let page = JobPage {
            fingerprint: admitted.fingerprint.clone(),
            numeric_profile_id: admitted.numeric_profile_id(),
            table_epoch: admitted.table.epoch(),
            dims: admitted.shape.dims,
            provenance: Provenance {
                by: admitted.served_by(),
                role,
                template_id: profile::template_id(&admitted.lane.record, role),
                normalized: admitted.shape.normalized,
            },
            items,
            vectors: served.into_iter().map(vector).collect(),
        };
        page.to_bytes()
    }

    fn space(page: &[u8]) -> Result<String, StoredError> {
        JobPage::from_bytes(page).map(|page| page.fingerprint)
    }
}

impl BatchKind for RerankJobOptions {
    const PHASE: &'static str = "score";
    type Text = EncodedPair;
    type Made = f32;
    type Served = f32;
    type Work = RerankWork;

    fn read(request: &str) -> Result<Self, StoredError> {
        Self::from_text(request)
    }

    async fn admit(&self, daemon: &Arc<Daemon>, ctx: &RequestContext, model: &str) -> Result<Admitted, ServiceError> {
        let constraints = self.constraints();
        admit(
            daemon,
            ctx,
            rerank_score::demand(model, &constraints),
            rerank_score::shape,
        )
        .await
    }

    fn truncate(&self) -> Option<bool> {
        self.truncate
    }

    fn encode(&self, loaded: &Loaded, text: &str, limits: Limits) -> Result<EncodedPair, NotEncoded> {
        let encoded = loaded.tokenizer.encode_pair(&self.query, text, limits);
        let mut pair = encoded.map_err(|error| match error {
            TextError::QueryTooLong { .. } | TextError::NoPairs => NotEncoded::Job(error.into()),
            error => NotEncoded::Text(error.into()),
        })?;
        pair.encoded.offsets = Vec::new();
        Ok(pair)
    }

    fn tokens(text: &EncodedPair) -> &Encoded {
        &text.encoded
    }

    fn result_bytes(_: &Admitted) -> u64 {
        4
    }

    fn work(admitted: &Admitted, texts: Arc<[EncodedPair]>, results: Results<f32>) -> RerankWork {
        RerankWork::new(&admitted.loaded, texts, call::envelope(admitted), results)
    }

    fn serve(made: f32, _: &Admitted) -> Result<f32, ServiceError> {
        rerank_score::finite(made)
    }

    fn page_bytes(_: &f32) -> usize {
        16
    }

    fn page(&self, admitted: &Admitted, items: Vec<ItemOutcome>, served: Vec<Option<f32>>) -> Vec<u8> {
        let page = ScorePage {
            fingerprint: admitted.fingerprint.clone(),
            numeric_profile_id: admitted.numeric_profile_id(),
            table_epoch: admitted.table.epoch(),
            score_kind: rerank_score::score_kind(admitted.lane.record.score_kind),
            provenance: admitted.served_by(),
            items,
            scores: served,
        };
        page.to_bytes()
    }

    fn space(page: &[u8]) -> Result<String, StoredError> {
        ScorePage::from_bytes(page).map(|page| page.fingerprint)
    }
}

//! The operations on aliases, and `models.explain`.
//!
//! No state. Each method is [`Client::call`] with its types.

use synapse_wire::client::{
    AliasesCheckIndex, AliasesCheckIndexParams, AliasesCheckIndexResult, AliasesDeclare, AliasesDeclareParams,
    AliasesList, AliasesListParams, AliasesResult, AliasesRetract, AliasesRetractParams, ModelsExplain,
    ModelsExplainParams, ModelsExplainResult, Stamped,
};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// `aliases.list`: the pairs of numeric spaces that are equivalent, or were.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn aliases_list(&self, params: AliasesListParams) -> Result<Stamped<AliasesResult>, ClientError> {
        self.call::<AliasesList>(&params).await
    }

    /// `aliases.declare`: says that two lanes serve equivalent spaces. Needs `alias_admin_enabled` at the daemon.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn aliases_declare(&self, params: &AliasesDeclareParams) -> Result<Stamped<AliasesResult>, ClientError> {
        self.call::<AliasesDeclare>(params).await
    }

    /// `aliases.retract`: says that they do not. Needs `alias_admin_enabled` at the daemon.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn aliases_retract(&self, params: &AliasesRetractParams) -> Result<Stamped<AliasesResult>, ClientError> {
        self.call::<AliasesRetract>(params).await
    }

    /// `aliases.check_index`: whether an index may still be written. [`crate::IndexSpaces`] asks it for you.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn aliases_check_index(
        &self,
        params: &AliasesCheckIndexParams,
    ) -> Result<Stamped<AliasesCheckIndexResult>, ClientError> {
        self.call::<AliasesCheckIndex>(params).await
    }

    /// `models.explain`: which lane would serve, and why every other would not.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn models_explain(
        &self,
        params: &ModelsExplainParams,
    ) -> Result<Stamped<ModelsExplainResult>, ClientError> {
        self.call::<ModelsExplain>(params).await
    }
}

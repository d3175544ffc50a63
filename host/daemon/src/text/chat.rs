//! Chat templates: messages become a prompt as the model's own template writes it.
//!
//! State: a compiled template, immutable. Callers: `microllm.oneshot`. Not known here: models, tokens.

use super::{Piece, TextError};

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    /// Instructions.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who said it.
    pub role: ChatRole,
    /// What was said.
    pub content: String,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: minijinja::Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a model's template.
    ///
    /// # Errors
    /// [`TextError::ChatTemplate`].
    pub fn compile(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let mut environment = minijinja::Environment::empty();
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(|error| TextError::ChatTemplate(error.to_string()))?;
        Ok(Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Renders messages.
    ///
    /// # Errors
    /// [`TextError::ChatTemplate`], [`TextError::ChatRefused`].
    pub fn render(&self, messages: &[ChatMessage]) -> Result<Vec<Piece>, TextError> {
        let _ = (&self.environment, &self.bos, &self.eos, messages);
        Err(TextError::ChatTemplate(String::from("rendering follows")))
    }
}

//! Chat templates: messages become a prompt as the model's own template writes it.
//!
//! State: a template's source, immutable. Callers: `models` (which refuses a model with a broken template) and
//! `microllm.oneshot`. Not known here: models, tokens, what a template means.
//!
//! A template is Jinja, written by a stranger: code that may be hostile. [`guard`] bounds what it costs to compile and
//! which values it can build, [`environment`] what it can call and spend, [`stand_in`] keeps the contents out of its
//! hands. The steps: check and parse, render with stand-ins, take the result apart into what the template wrote and
//! what people wrote (DECISIONS "GGUF vocabularies").

mod environment;
mod guard;
mod stand_in;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::machinery::{self, CodeGenerator, Instructions};
use minijinja::{AutoEscape, Environment, Value};

use self::environment::Raised;
use self::stand_in::StandIn;
use super::TextError;
use super::prompt::Piece;

/// A template's name in messages.
const NAME: &str = "chat_template";
/// Most bytes that a template may write, the contents not counted.
const MAX_OUTPUT: usize = 256 << 10;
/// Most messages of one conversation.
const MAX_MESSAGES: usize = 256;

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    /// Instructions that stand above the conversation.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
}

impl ChatRole {
    /// Its name in templates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who said it.
    pub role: ChatRole,
    /// What was said.
    pub content: String,
}

/// A model's chat template, compiled once and found usable.
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the spellings of the begin and the end token, for templates that write
    /// them; empty where the model has none.
    ///
    /// # Errors
    /// [`TextError::ChatTemplate`] when it is no Jinja, longer than 64 KiB, or costs too much to compile.
    pub fn compile(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        contained(|| instructions(source).map(drop))?;
        Ok(Self {
            source: source.to_owned(),
            environment: environment::environment(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Renders a conversation that the model is to go on (`add_generation_prompt` is true). Where the template trims a
    /// content, the piece is trimmed; any other alteration is refused, because what people wrote must reach the model
    /// as it is. The template sees each content as one opaque text, so a condition on its words does not hold.
    ///
    /// # Errors
    /// [`TextError::ChatRefused`] when the template raises an exception, [`TextError::ChatTemplate`] when it fails,
    /// spends too much, or does not show every content once.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<Vec<Piece>, TextError> {
        let refuse = TextError::ChatTemplate;
        if messages.len() > MAX_MESSAGES {
            return Err(refuse(format!(
                "{} messages, at most {MAX_MESSAGES} are rendered",
                messages.len()
            )));
        }
        let mut stand_ins = Vec::with_capacity(messages.len());
        let mut shown = Vec::with_capacity(messages.len());
        for message in messages {
            let stand_in = StandIn::new(&message.content);
            let content = stand_in
                .as_ref()
                .map_or_else(|| Value::from(""), |stand_in| stand_in.text().into());
            shown.push(Value::from(BTreeMap::from([
                (Value::from("role"), Value::from(message.role.name())),
                (Value::from("content"), content),
            ])));
            stand_ins.extend(stand_in);
        }
        let rendered = contained(|| self.run(shown))?;
        stand_in::split(&rendered, &stand_ins).map_err(refuse)
    }

    fn run(&self, messages: Vec<Value>) -> Result<String, TextError> {
        let (instructions, blocks) = instructions(&self.source)?;
        let context = Value::from(BTreeMap::from([
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(true)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]));
        let mut rendered = String::new();
        let mut output = machinery::make_string_output(&mut rendered);
        machinery::eval(
            &self.environment,
            &instructions,
            context,
            &blocks,
            &mut output,
            AutoEscape::None,
        )
        .map_err(|error| failed(&error))?;
        if rendered.len() > MAX_OUTPUT {
            return Err(TextError::ChatTemplate(format!(
                "it writes {} bytes, at most {MAX_OUTPUT} are taken",
                rendered.len()
            )));
        }
        Ok(rendered)
    }
}

/// A template as the library runs it: guarded, then compiled.
fn instructions(source: &str) -> Result<Compiled<'_>, TextError> {
    let parsed = guard::parse(source).map_err(TextError::ChatTemplate)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parsed);
    Ok(generator.finish())
}

type Compiled<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

/// Runs library code. A panic there is a failure like any other: a stranger's template must not end a thread.
fn contained<T>(work: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(TextError::ChatTemplate(String::from("the template library panicked"))))
}

/// A failure, or the template's own refusal: it may lie below what the library says around it.
fn failed(error: &minijinja::Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Raised(message)) = found.downcast_ref() {
            return TextError::ChatRefused(message.clone());
        }
        cause = found.source();
    }
    TextError::ChatTemplate(words(error))
}

/// An error of the library in a line of bounded length.
fn words(error: &minijinja::Error) -> String {
    shorten(&error.to_string())
}

/// A template's own words, without line ends and at most 200 characters.
fn shorten(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

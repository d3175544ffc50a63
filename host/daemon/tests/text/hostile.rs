//! Chat templates and vocabularies of somebody who means harm: each ends soon, in an answer or in words.
//!
//! A hang, an overflowing stack or an exhausted memory ends the whole test program, so these tests need no clock.

use synapse_daemon::text::sanitise::sanitise;
use synapse_daemon::text::vocabulary::{Entry, EntryKind, Vocabulary, tokenizer_json};
use synapse_daemon::text::{ChatMessage, ChatRole, ChatTemplate, Piece, TextError, Tokenizer};

use crate::support::cut;

fn messages() -> Vec<ChatMessage> {
    let message = |role, content: &str| ChatMessage {
        role,
        content: content.to_owned(),
    };
    vec![
        message(ChatRole::System, " be good\n"),
        message(ChatRole::User, "hello </s>"),
    ]
}

fn render(source: &str) -> Result<Vec<Piece>, TextError> {
    ChatTemplate::compile(source, "<s>", "</s>")?.render(&messages())
}

/// Each was seen to hang, to take all memory or to overflow the stack with the library alone, its fuel switched on.
#[test]
fn what_the_librarys_fuel_does_not_count_is_refused() {
    let grow = |step: &str| format!("{{% set a = [1] %}}{}{{{{ a }}}}", step.repeat(60));
    let cases = [
        // Values whose parts are shared: 2^40 steps to print, to compare, to measure.
        (grow("{% set a = [a, a] %}"), "too deep"),
        (grow("{% set a = (a, a) %}"), "too deep"),
        (grow("{% set a = {'x': a, 'y': a} %}"), "too deep"),
        (grow("{% set a = a + a %}"), "too many values"),
        (grow("{% set a = a * 2 %}"), "multiplied"),
        (
            format!(
                "{{% set a = [{}] %}}{{{{ [a, a, a, a, a, a, a, a, a, a] }}}}",
                "1, ".repeat(240)
            ),
            "too many values",
        ),
        (grow("{% set a = a | zip(a) | list %}"), "zip"),
        (grow("{% set a = a | batch(1) | list %}"), "batch"),
        (
            String::from(
                "{% set n = namespace(a=1) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a == n.a }}",
            ),
            "too deep",
        ),
        (
            String::from(
                "{% macro f(x, n) %}{% if n %}{{ f([x, x], n - 1) }}{% else %}{{ x }}{% endif %}{% endmacro %}{{ f(1, 20) }}",
            ),
            "too deep",
        ),
        // A namespace in itself.
        (
            String::from("{% set n = namespace() %}{% set n.a = n %}{{ n }}"),
            "an object inside",
        ),
        (
            String::from("{% set n = namespace() %}{% set m = namespace(a=n) %}{{ m }}"),
            "an object inside",
        ),
        (
            String::from("{% set n = namespace() %}{% set (n.a, b) = [n, 1] %}{{ n }}"),
            "an object inside",
        ),
        // A slice of a slice of a slice, read by recursion.
        (
            format!(
                "{{% set a = messages %}}{}{{{{ a | list }}}}",
                format!("{{% set a = a{} %}}", "[:]".repeat(100)).repeat(200)
            ),
            "fuel",
        ),
        // Chains that the parser, the compiler and the tree's end walk by recursion.
        (
            format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(5_000)),
            "elif",
        ),
        (format!("{{{{ {}1 }}}}", "-".repeat(60_000)), "tokens"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(15_000)), "tokens"),
        (format!("{{{{ 1{} }}}}", "+a".repeat(30_000)), "tokens"),
        (format!("{{{{ a{} }}}}", ".a".repeat(30_000)), "tokens"),
        (format!("{{{{ a{} }}}}", "|e".repeat(30_000)), "tokens"),
        (format!("{{{{ a{} }}}}", " or a".repeat(12_000)), "tokens"),
        (format!("{{{{ a{} }}}}", "**a".repeat(20_000)), "tokens"),
        ("{% if a %}".repeat(6_000), "recursion"),
        (format!("{{{{ {}1 }}}}", "(".repeat(500)), "recursion"),
        // What fuel does count.
        (
            String::from("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
            "fuel",
        ),
        (String::from("{{ ('x' * 90000000) | length }}"), "fuel"),
        (String::from("{{ 'a\nb' | indent(2000000000) | length }}"), "fuel"),
        (
            String::from("{{ ('x' * 99999) | replace('x', 'y' * 99999) | length }}"),
            "fuel",
        ),
        (
            String::from("{{ ('x' * 99999).replace('x', 'y' * 99999) | length }}"),
            "fuel",
        ),
        (
            format!("{{% set a = 'xxxx' %}}{}", "{% set a = [a, a] | join(a) %}".repeat(40)),
            "fuel",
        ),
        (
            String::from("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}"),
            "recursion",
        ),
        (
            String::from("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}"),
            "recursion",
        ),
        // What it counts too kindly.
        (String::from("{{ ('x ' * 9999).split(' ') | length }}"), "parts"),
        (
            format!("{{% for i in range(9000) %}}{}{{% endfor %}}", "x".repeat(60)),
            "at most",
        ),
        ("x".repeat(70_000), "at most"),
        (String::from("{{ 9 ** 999999999 }}"), "unable to calculate"),
    ];
    for (source, words) in cases {
        let start: String = source.chars().take(90).collect();
        match render(&source) {
            Err(TextError::ChatTemplate(reason)) => assert!(reason.contains(words), "{start}: {reason}"),
            other => panic!("{start}: {other:?}"),
        }
    }
}

/// Numbers from a seed, for tests that must be the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // Marsaglia's xorshift, 64 bits.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides).expect("fits")).expect("fits")
    }

    fn pick<'p>(&mut self, list: &[&'p str]) -> &'p str {
        list[self.roll(list.len())]
    }
}

const SCRAPS: [&str; 64] = [
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{{- ",
    " -}}",
    "{%- ",
    "{# ",
    " #}",
    "{% raw %}",
    "{% endraw %}",
    "for m in messages",
    "endfor",
    "if m",
    "if ",
    "elif a",
    "else",
    "endif",
    "set a = ",
    "set n.a = ",
    "set (a, b) = ",
    "endset",
    "set a",
    "macro f(x, y=1)",
    "endmacro",
    "f(",
    "loop(",
    "namespace(",
    "range(",
    "raise_exception(",
    "m.content",
    "m['role']",
    "messages",
    "[0]",
    "[1:]",
    "[::-1]",
    ".strip()",
    ".split('a')",
    ".items()",
    ".get('x')",
    "|trim",
    "|list",
    "|join",
    "|map('upper')",
    "|select",
    "|default(",
    "|replace('a', 'b')",
    "|length",
    "|scalar",
    "|sliced",
    " + ",
    " ~ ",
    " * ",
    " ** ",
    " is defined",
    " in ",
    " not ",
    ")",
    "]",
    "'a\\n",
    "'",
    "\"",
    "\u{2003}",
    "99999999",
];

/// Two thousand templates of scraps: each compiles or does not, renders or does not, and a rendered one holds both
/// contents, once each.
#[test]
fn two_thousand_torn_templates_end_in_words_or_in_pieces() {
    let mut dice = Dice(0x5ca1_ab1e);
    let (mut compiled, mut rendered) = (0, 0);
    for _ in 0..2_000 {
        let mut source = String::new();
        for _ in 0..1 + dice.roll(6) {
            // Half of the scraps stand in a tag, so that some of them mean something.
            match dice.roll(4) {
                0 => source.push_str(dice.pick(&SCRAPS)),
                1 => source.push_str(&format!(
                    "{{{{ {}{} }}}}",
                    dice.pick(&SCRAPS[30..33]),
                    dice.pick(&SCRAPS[33..50])
                )),
                2 if dice.roll(3) == 0 => source.push_str(&format!(
                    "{{% for a, b in {}{} %}}{{{{ a }}}}{{% break %}}{{% endfor %}}",
                    dice.pick(&SCRAPS[30..37]),
                    dice.pick(&SCRAPS)
                )),
                2 => source.push_str(&format!(
                    "{{% set a = {}{} %}}",
                    dice.pick(&SCRAPS[30..37]),
                    dice.pick(&SCRAPS)
                )),
                _ => source.push_str("{% for m in messages %}<{{ m.content }}>{% endfor %}"),
            }
        }
        let template = match ChatTemplate::compile(&source, "<s>", "</s>") {
            Ok(template) => template,
            Err(error) => {
                assert!(!error.to_string().contains("panicked"), "{source}");
                continue;
            }
        };
        compiled += 1;
        let pieces = match template.render(&messages()) {
            Ok(pieces) => pieces,
            Err(error) => {
                assert!(!error.to_string().contains("panicked"), "{source}");
                continue;
            }
        };
        rendered += 1;
        let mut contents: Vec<&str> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Content(text) => Some(text.trim()),
                Piece::Template(_) => None,
            })
            .collect();
        contents.sort_unstable();
        assert_eq!(contents, ["be good", "hello </s>"], "{source}");
    }
    assert!(
        compiled > 400 && rendered > 100,
        "{compiled} compiled, {rendered} rendered"
    );
}

/// Two thousand torn vocabularies of the three families: refused in words, or a tokenizer that encodes.
#[test]
fn two_thousand_torn_vocabularies_end_in_words_or_in_a_tokenizer() {
    let mut dice = Dice(0xdead_beef);
    let texts = [
        "a",
        "b",
        "ab",
        "ba",
        "aba",
        " ",
        "\u{2581}",
        "\u{2581}a",
        "\u{120}",
        "\u{120}a",
        "<0x0A>",
        "<0xzz>",
        "<s>",
        "</s>",
        "<unk>",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        "<|x|>",
        "<start_of_turn>",
        "",
        "\u{1f680}",
        "\0",
        "##a",
    ];
    let kinds = [
        EntryKind::Normal,
        EntryKind::Normal,
        EntryKind::Normal,
        EntryKind::Control,
        EntryKind::Unknown,
        EntryKind::UserDefined,
        EntryKind::Unused,
        EntryKind::Byte,
    ];
    let mut good = 0;
    for _ in 0..2_000 {
        let tidy = dice.roll(2) == 0;
        let mut entries: Vec<Entry> = Vec::new();
        for place in 0..(if tidy { texts.len() } else { dice.roll(texts.len()) }) {
            let text = if tidy { texts[place] } else { dice.pick(&texts) };
            let long = dice.roll(200) == 0;
            let kind = if tidy {
                EntryKind::Normal
            } else {
                kinds[dice.roll(kinds.len())]
            };
            let kind = match text {
                "<0x0A>" if tidy => EntryKind::Byte,
                "<s>" | "</s>" | "<unk>" | "[CLS]" | "[SEP]" | "[UNK]" | "<|x|>" if tidy => EntryKind::Control,
                "<0xzz>" | "##a" if tidy => EntryKind::Unused,
                _ => kind,
            };
            let score = [0.0, -1.0, 7.5, f32::NAN][dice.roll(if tidy { 3 } else { 4 })];
            entries.push(Entry {
                text: if long { text.repeat(3_000) } else { text.to_owned() },
                score,
                kind,
            });
        }
        // The entries from the twelfth on are named like control tokens.
        let id = |dice: &mut Dice| (tidy || dice.roll(3) > 0).then(|| u32::try_from(12 + dice.roll(7)).expect("fits"));
        let flag = |dice: &mut Dice| [None, Some(true), Some(false)][dice.roll(3)];
        let vocabulary = Vocabulary {
            model: dice.pick(&["gpt2", "llama", "bert", "t5"]).to_owned(),
            pre: [None, Some("gpt-2"), Some("llama-bpe"), Some("qwen2"), Some("other")][dice.roll(5)]
                .map(str::to_owned),
            entries,
            merges: (0..dice.roll(4))
                .map(|_| dice.pick(&["a b", "b a", "ab a", "a", "a b c", " ", "x y"][..if tidy { 3 } else { 7 }]))
                .map(str::to_owned)
                .collect(),
            bos: id(&mut dice),
            eos: id(&mut dice),
            unknown: id(&mut dice),
            add_bos: flag(&mut dice),
            add_eos: flag(&mut dice),
            add_space_prefix: flag(&mut dice),
            lowercase: flag(&mut dice),
        };
        let loaded = tokenizer_json(&vocabulary)
            .and_then(|bytes| sanitise(&bytes, None))
            .and_then(|sanitised| Tokenizer::from_sanitised(&sanitised.bytes));
        match loaded {
            Ok(tokenizer) => {
                good += 1;
                let piece = Piece::Content(String::from("ab\u{1f680} a</s>"));
                tokenizer
                    .encode_prompt(&[piece], 64)
                    .expect("a tokenizer that loads encodes");
                tokenizer
                    .encode("aba b", None, cut(64))
                    .expect("a tokenizer that loads encodes");
            }
            Err(TextError::Refused(reason)) => assert!(!reason.is_empty() && reason.len() < 600, "{reason}"),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(good > 100, "{good} tokenizers");
}

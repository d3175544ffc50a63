//! Chat templates: the shapes in wide use, in our own words, and what makes a template unusable.
//!
//! Expected prompts are written by hand from what Jinja means; the whole way to ids is compared in `prompt.rs`.

use synapse_daemon::text::{ChatMessage, ChatRole, ChatTemplate, Piece, TextError};

/// Turns with markers, and a system turn of the template's own where there is none.
const MARKED_TURNS: &str = "{% for turn in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|open|>system\nBe brief.<|close|>\n' }}{% endif %}\
    {{ '<|open|>' + turn['role'] + '\n' + turn['content'] + '<|close|>' + '\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|open|>assistant\n' }}{% endif %}";

/// A begin token, headers, trimmed contents; tags on lines of their own.
const HEADERS: &str = "{{- bos_token }}
{%- for turn in messages %}
    {%- set head = '<|head|>' + turn['role'] + '<|body|>\n\n' %}
    {{- head + turn['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|body|>\n\n' }}
{%- endif %}
";

/// The system text goes in front of the first turn, turns must alternate, and the model has a name of its own.
const MERGED_SYSTEM: &str = "{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\n\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('turns must alternate') }}
    {%- endif -%}
    {%- set who = 'model' if turn['role'] == 'assistant' else turn['role'] -%}
    {{ '<turn>' + who + '\n' + (first if loop.first else '') }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] | trim }}
    {%- endif -%}
    {{ '</turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\n' }}{%- endif -%}";

/// No system turn at all; the end token after what the model said; a namespace counts.
const BRACKETS: &str = "{%- set seen = namespace(turns=0, last='') -%}{{ bos_token }}
{%- for turn in messages -%}
    {%- if turn.role == 'system' %}{{ raise_exception('this model takes no system message') }}{% endif -%}
    {%- if turn.role == 'user' -%}
        {%- set seen.turns = seen.turns + 1 -%}{%- set seen.last = turn.content.strip() -%}
        {{ '[' ~ seen.turns ~ '] ' + seen.last + ' [/]' }}
    {%- elif turn.role == 'assistant' -%}
        {{ ' ' + turn.content.strip() + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}";

/// A macro writes the turns; tools and thoughts are asked for and absent.
const MACROS: &str = "{%- macro turn(role, text) -%}<{{ role|upper }}>{{ text }}</{{ role | upper }}>{%- endmacro -%}
{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' and '</think>' in message.content -%}
        {{ turn(message.role, message.content.split('</think>')[-1].lstrip('\n')) }}
    {%- else -%}
        {{ turn(message.role, message.content) }}
    {%- endif -%}
{%- endfor -%}
<ASSISTANT>{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif -%}";

/// Lists grow, are filtered and compared; the last question is told from the others.
const LISTS: &str = "{%- set questions = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- set kept = namespace(turns=[]) -%}
{%- for turn in messages -%}
    {%- if turn['role'] not in ['tool', 'system'] and not turn.get('tool_calls') -%}
        {%- set kept.turns = kept.turns + [turn] -%}
    {%- endif -%}
{%- endfor -%}
{%- for key, value in {'a': 1}.items() %}{{ key ~ value }}{% endfor -%}
{%- for (key, value) in [('b', 2)] %}{{ key ~ value }}{% endfor -%}
{%- for turn in kept.turns -%}
    {{ (kept.turns | length) ~ turn.role[0] + ('!' if turn == questions[-1] else '.') + turn.content }}
{%- endfor -%}";

fn message(role: ChatRole, content: &str) -> ChatMessage {
    ChatMessage {
        role,
        content: content.to_owned(),
    }
}

fn user(content: &str) -> Vec<ChatMessage> {
    vec![message(ChatRole::User, content)]
}

fn render(template: &str, messages: &[ChatMessage]) -> Result<Vec<Piece>, TextError> {
    ChatTemplate::compile(template, "<s>", "</s>")?.render(messages)
}

/// Pieces in one text: the template's as they are, contents in «».
fn shown(template: &str, messages: &[ChatMessage]) -> String {
    let pieces = render(template, messages).unwrap_or_else(|error| panic!("{error}\n{template}"));
    let parts = pieces.iter().map(|piece| match piece {
        Piece::Template(text) => text.clone(),
        Piece::Content(text) => format!("«{text}»"),
    });
    parts.collect()
}

#[test]
fn templates_of_the_usual_shapes_render() {
    let system = message(ChatRole::System, " Answer in verse. ");
    let question = message(ChatRole::User, "\nWhy?\n");
    let answer = message(ChatRole::Assistant, "Because. ");
    let one = std::slice::from_ref(&question);
    let two = [system.clone(), question.clone()];
    let talk = [question.clone(), answer.clone(), question.clone()];
    let cases: [(&str, &[ChatMessage], &str); 11] = [
        (
            MARKED_TURNS,
            one,
            "<|open|>system\nBe brief.<|close|>\n<|open|>user\n«\nWhy?\n»<|close|>\n<|open|>assistant\n",
        ),
        (
            MARKED_TURNS,
            &two,
            "<|open|>system\n« Answer in verse. »<|close|>\n<|open|>user\n«\nWhy?\n»<|close|>\n<|open|>assistant\n",
        ),
        (
            HEADERS,
            &two,
            "<s><|head|>system<|body|>\n\n«Answer in verse.»<|end|><|head|>user<|body|>\n\n«Why?»<|end|>\
             <|head|>assistant<|body|>\n\n",
        ),
        (MERGED_SYSTEM, one, "<s><turn>user\n«Why?»</turn>\n<turn>model\n"),
        (
            MERGED_SYSTEM,
            &two,
            "<s><turn>user\n« Answer in verse. »\n\n«Why?»</turn>\n<turn>model\n",
        ),
        (
            MERGED_SYSTEM,
            &talk,
            "<s><turn>user\n«Why?»</turn>\n<turn>model\n«Because.»</turn>\n<turn>user\n«Why?»</turn>\n<turn>model\n",
        ),
        (BRACKETS, one, "<s>[1] «Why?» [/]"),
        (BRACKETS, &talk, "<s>[1] «Why?» [/] «Because.» </s>[2] «Why?» [/]"),
        (
            MACROS,
            &talk,
            "<USER>«\nWhy?\n»</USER><ASSISTANT>«Because. »</ASSISTANT><USER>«\nWhy?\n»</USER><ASSISTANT>",
        ),
        (MACROS, &[], "<ASSISTANT>"),
        (
            LISTS,
            &[answer.clone(), question.clone()],
            "a1b22a.«Because. »2u!«\nWhy?\n»",
        ),
    ];
    for (template, messages, expected) in cases {
        assert_eq!(shown(template, messages), expected);
    }
}

/// What templates may spend is enough for a long talk, also where one builds a list anew at each turn.
#[test]
fn a_hundred_messages_are_rendered() {
    let turn = |index: usize| {
        let role = if index.is_multiple_of(2) {
            ChatRole::User
        } else {
            ChatRole::Assistant
        };
        message(role, &format!(" turn {index}\n"))
    };
    let talk: Vec<ChatMessage> = (0..99).map(turn).collect();
    for template in [MARKED_TURNS, HEADERS, MERGED_SYSTEM, BRACKETS, MACROS, LISTS] {
        let pieces = render(template, &talk).unwrap_or_else(|error| panic!("{error}\n{template}"));
        let contents = pieces.iter().filter(|piece| matches!(piece, Piece::Content(_)));
        assert_eq!(contents.count(), 99, "{template}");
    }
    let endless: Vec<ChatMessage> = (0..257).map(turn).collect();
    let refused = render(MARKED_TURNS, &endless);
    assert!(matches!(refused, Err(TextError::ChatTemplate(_))), "{refused:?}");
}

/// Jinja as Hugging Face sets it up: the line of a tag leaves nothing behind, neither before it nor after it.
#[test]
fn a_tags_line_leaves_no_white_space() {
    let template =
        "{% for m in messages %}\n    {% if m.role %}\n  X{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(shown(template, &user("a")), "  X«a»\nend");
}

#[test]
fn contents_are_never_run_and_never_searched() {
    let jinja = "{{ bos_token }}{% for x in y %}{# no #}</s><|open|>«» \u{2002}\u{2003} \u{f8ff}\0";
    let pieces = render(MARKED_TURNS, &user(jinja)).expect("renders");
    assert_eq!(pieces[1], Piece::Content(jinja.to_owned()));
    // An empty content is nothing to find again, and the template still writes its turn.
    assert_eq!(shown(BRACKETS, &user("")), "<s>[1]  [/]");
    // A content of white space is trimmed to nothing.
    assert_eq!(shown(BRACKETS, &user(" \n\u{a0}")), "<s>[1]  [/]");
    // Equal contents keep their places.
    let same = [message(ChatRole::System, "same"), message(ChatRole::User, "same")];
    assert_eq!(
        shown(
            "{% for m in messages|reverse %}{{ m.role }}={{ m.content }};{% endfor %}",
            &same
        ),
        "user=«same»;system=«same»;"
    );
}

#[test]
fn a_template_that_alters_contents_is_refused() {
    let each = |write: &str| format!("{{% for m in messages %}}{{{{ {write} }}}}{{% endfor %}}");
    let cases = [
        ("nothing", "drops or alters the content of message 1"),
        ("{{ messages[0].content }}", "drops or alters the content of message 2"),
        (&each("m.content ~ m.content"), "content of message 1 twice"),
        (&each("m.content | upper"), "drops or alters"),
        (&each("m.content | lower"), "drops or alters"),
        (&each("m.content | title"), "drops or alters"),
        (&each("m.content | capitalize"), "drops or alters"),
        (&each("m.content | indent(4)"), "drops or alters"),
        (&each("m.content[1:]"), "cuts off"),
        (&each("m.content[:-1]"), "cuts off"),
        (&each("m.content[:40]"), "drops or alters"),
        (&each("m.content | reverse"), "drops or alters"),
        (&each("m.content.split('\\n')[0]"), "drops or alters"),
        (&each("m.content.replace('\\n', ' ')"), "drops or alters"),
        (&each("m.content | replace('\"', '')"), "drops or alters"),
        (&each("m.content | list | join(' ')"), "drops or alters"),
        (&each("m.content | length"), "drops or alters"),
    ];
    let messages = [message(ChatRole::System, "one"), message(ChatRole::User, "two")];
    for (template, words) in cases {
        match render(template, &messages) {
            Err(TextError::ChatTemplate(reason)) => assert!(reason.contains(words), "{template}: {reason}"),
            other => panic!("{template}: {other:?}"),
        }
    }
    // Trimming is no alteration: it is done to the content.
    for (write, expected) in [
        ("m.content | trim", "«a»"),
        ("m.content.strip()", "«a»"),
        ("m.content.lstrip()", "«a »"),
        ("m.content.rstrip()", "« a»"),
        ("' ' + m.content.strip() + ' '", " «a» "),
    ] {
        assert_eq!(shown(&each(write), &user(" a ")), expected, "{write}");
    }
}

#[test]
fn a_templates_own_refusal_is_told_from_its_failure() {
    let system = [message(ChatRole::System, "x")];
    let refused = render(BRACKETS, &system);
    assert_eq!(
        refused,
        Err(TextError::ChatRefused(String::from(
            "this model takes no system message"
        )))
    );
    let nested = "{% macro f() %}{{ raise_exception('no\\n' ~ 'x' * 500) }}{% endmacro %}{{ f() }}";
    match render(nested, &system) {
        Err(TextError::ChatRefused(words)) => assert_eq!(words, format!("no {}", "x".repeat(197))),
        other => panic!("{other:?}"),
    }
    for (template, words) in [
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ open(1) }}", "unknown"),
        ("{{ messages[0].content.encode() }}", "no method named encode"),
        ("{{ 1 | tojson }}", "tojson"),
        ("{{ 1 // 0 }}", "operation"),
    ] {
        match render(template, &system) {
            Err(TextError::ChatTemplate(reason)) => assert!(reason.contains(words), "{template}: {reason}"),
            other => panic!("{template}: {other:?}"),
        }
    }
    for (template, words) in [
        ("{% for m in messages %}", "syntax error"),
        ("{% include 'x' %}", "include"),
        ("{% import 'x' as y %}", "import"),
        ("{% extends 'x' %}", "extends"),
        ("{% do x() %}", "`do`"),
        ("{% call f() %}{% endcall %}", "`call`"),
        ("{% filter upper %}{% endfilter %}", "`filter`"),
        ("{% autoescape true %}{% endautoescape %}", "`autoescape`"),
        ("{% generation %}", "generation"),
    ] {
        match ChatTemplate::compile(template, "", "") {
            Err(TextError::ChatTemplate(reason)) => assert!(reason.contains(words), "{template}: {reason}"),
            other => panic!("{template}: {other:?}"),
        }
    }
}

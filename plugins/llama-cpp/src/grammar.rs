//! Which grammars may reach llama.cpp's parser.
//!
//! Owns nothing. Caller: `sample`. llama.cpp's parser recurses without bound, prints what it refuses to standard error,
//! and multiplies repetitions before it counts them; its matcher loops on hidden left recursion. So a grammar is read
//! here first, by the same syntax (GBNF as `llama-grammar.cpp` parses it), with bounds: what passes is parsed there at
//! a known cost. References to tokens (`<think>`, `<[123]>`) are not offered.

use std::collections::HashMap;
use std::fmt;

/// The longest grammar, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// The deepest nesting of groups.
pub const MAX_NESTING: usize = 64;
/// The most repetitions of a part, with the rules inside it multiplied: llama.cpp's own bound.
const MAX_REPETITIONS: u64 = 2000;
/// The most elements after repetitions are written out. One takes 8 bytes in llama.cpp.
const MAX_ELEMENTS: usize = 1 << 18;
/// The longest chain of rules that begin with each other. llama.cpp recurses along it.
const MAX_CHAIN: usize = 512;
/// The most ways in which one rule unfolds before its first character. llama.cpp walks them all, at every character.
const MAX_WAYS: usize = 1 << 14;
/// The same over all rules. llama.cpp walks them once, when it looks for left recursion.
const MAX_ALL_WAYS: usize = 1 << 20;

/// Why a grammar is refused. Never the grammar's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    line: usize,
    what: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// Checks a grammar's syntax, its references and what it costs.
///
/// # Errors
/// [`Refused`], with the line.
pub fn check(grammar: &str) -> Result<(), Refused> {
    let mut parser = Parser::new(grammar.as_bytes());
    if grammar.len() > MAX_BYTES {
        return Err(parser.refuse("longer than 64 KiB"));
    }
    if grammar.contains('\0') {
        return Err(parser.refuse("a zero byte"));
    }
    parser.space(true);
    while parser.peek() != 0 {
        parser.rule()?;
    }
    parser.unfold()
}

/// What a sequence is made of, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    /// A literal or a class, however long.
    Characters,
    Rule(usize),
}

/// Sequences of which one is taken.
type Alternates = Vec<Vec<Symbol>>;

/// A rule, by what is known of it.
#[derive(Debug)]
struct Rule {
    /// Where it was first named.
    named_at: usize,
    alternates: Option<Alternates>,
}

/// The last part of a sequence, which a repetition applies to.
#[derive(Debug)]
struct Part {
    /// Where it begins among the sequence's symbols.
    start: usize,
    /// How many elements llama.cpp makes of it; 0 is no part.
    elements: usize,
    /// What llama.cpp multiplies the repetitions with.
    rules: u64,
}

/// What is known of a rule once it is unfolded.
#[derive(Clone, Copy, Debug)]
struct Unfolded {
    may_be_empty: bool,
    ways: usize,
    chain: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    New,
    InProgress,
    Done(Unfolded),
}

struct Parser<'g> {
    bytes: &'g [u8],
    at: usize,
    nesting: usize,
    elements: usize,
    names: HashMap<&'g [u8], usize>,
    rules: Vec<Rule>,
}

impl<'g> Parser<'g> {
    fn new(bytes: &'g [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            nesting: 0,
            elements: 0,
            names: HashMap::new(),
            rules: Vec::new(),
        }
    }

    fn refuse(&self, what: &'static str) -> Refused {
        self.refuse_at(self.at, what)
    }

    fn refuse_at(&self, at: usize, what: &'static str) -> Refused {
        let before = &self.bytes[..at.min(self.bytes.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Refused { line, what }
    }

    /// The byte so far ahead; 0 at the end.
    fn ahead(&self, by: usize) -> u8 {
        self.bytes.get(self.at + by).copied().unwrap_or(0)
    }

    fn peek(&self) -> u8 {
        self.ahead(0)
    }

    fn takes(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    /// Blanks and comments; line ends too where they mean nothing.
    fn space(&mut self, lines: bool) {
        loop {
            match self.peek() {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if lines => self.at += 1,
                b'#' => {
                    while !matches!(self.peek(), 0 | b'\r' | b'\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<usize, Refused> {
        let start = self.at;
        while self.peek().is_ascii_alphanumeric() || self.peek() == b'-' {
            self.at += 1;
        }
        if start == self.at {
            return Err(self.refuse("expected a rule's name"));
        }
        let name = &self.bytes[start..self.at];
        if let Some(id) = self.names.get(name) {
            return Ok(*id);
        }
        let id = self.new_rule(start);
        self.names.insert(name, id);
        Ok(id)
    }

    fn new_rule(&mut self, named_at: usize) -> usize {
        self.rules.push(Rule {
            named_at,
            alternates: None,
        });
        self.rules.len() - 1
    }

    fn grow(&mut self, elements: usize) -> Result<(), Refused> {
        self.elements = self.elements.saturating_add(elements);
        if self.elements > MAX_ELEMENTS {
            return Err(self.refuse("too large once repetitions are written out"));
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<(), Refused> {
        let id = self.name()?;
        self.space(false);
        if !self.bytes[self.at..].starts_with(b"::=") {
            return Err(self.refuse("expected `::=`"));
        }
        self.at += 3;
        self.space(true);
        let alternates = self.alternates()?;
        // As in llama.cpp, the last rule of a name counts.
        self.rules[id].alternates = Some(alternates);
        match self.peek() {
            0 => {}
            b'\r' | b'\n' => self.at += 1,
            _ => return Err(self.refuse("expected a new line or the end")),
        }
        self.space(true);
        Ok(())
    }

    fn alternates(&mut self) -> Result<Alternates, Refused> {
        let mut alternates = vec![self.sequence()?];
        while self.takes(b'|') {
            self.space(true);
            alternates.push(self.sequence()?);
        }
        Ok(alternates)
    }

    fn sequence(&mut self) -> Result<Vec<Symbol>, Refused> {
        let mut symbols = Vec::new();
        let mut part = Part {
            start: 0,
            elements: 0,
            rules: 1,
        };
        self.grow(1)?;
        loop {
            match self.peek() {
                b'"' => part = self.characters(&mut symbols, b'"')?,
                b'[' => part = self.characters(&mut symbols, b']')?,
                b'.' => {
                    self.at += 1;
                    part = self.part(&mut symbols, Symbol::Characters, 1, 1)?;
                }
                b'(' => {
                    let known = self.rules.len();
                    let group = self.group()?;
                    let made = (self.rules.len() - known) as u64;
                    part = self.part(&mut symbols, Symbol::Rule(group), 1, made.max(1))?;
                }
                b'*' => self.repeat(&mut symbols, &mut part, 0, None)?,
                b'+' => self.repeat(&mut symbols, &mut part, 1, None)?,
                b'?' => self.repeat(&mut symbols, &mut part, 0, Some(1))?,
                b'{' => {
                    let (least, most) = self.bounds()?;
                    self.repeat(&mut symbols, &mut part, least, most)?;
                }
                b'<' | b'!' => return Err(self.refuse("references to tokens are not offered: write their text")),
                byte if byte.is_ascii_alphanumeric() || byte == b'-' => {
                    let id = self.name()?;
                    part = self.part(&mut symbols, Symbol::Rule(id), 1, 1)?;
                }
                _ => return Ok(symbols),
            }
            self.space(self.nesting > 0);
        }
    }

    /// Adds a part of one symbol.
    fn part(
        &mut self,
        symbols: &mut Vec<Symbol>,
        symbol: Symbol,
        elements: usize,
        rules: u64,
    ) -> Result<Part, Refused> {
        let start = symbols.len();
        if elements > 0 {
            symbols.push(symbol);
        }
        self.grow(elements)?;
        Ok(Part { start, elements, rules })
    }

    /// A literal or a class, up to and with its end.
    fn characters(&mut self, symbols: &mut Vec<Symbol>, end: u8) -> Result<Part, Refused> {
        let opened = self.at;
        self.at += 1;
        if end == b']' {
            self.takes(b'^');
        }
        let mut elements = 0;
        while !self.takes(end) {
            if self.peek() == 0 {
                return Err(self.refuse_at(opened, "a text or a class that does not end"));
            }
            self.character()?;
            elements += 1;
            if end == b']' && self.peek() == b'-' && self.ahead(1) != b']' {
                self.at += 1;
                self.character()?;
                elements += 1;
            }
        }
        self.part(symbols, Symbol::Characters, elements, 1)
    }

    fn character(&mut self) -> Result<(), Refused> {
        match self.peek() {
            0 => return Err(self.refuse("a text or a class that does not end")),
            b'\\' => {
                let digits = match self.ahead(1) {
                    b'x' => 2,
                    b'u' => 4,
                    b'U' => 8,
                    b't' | b'r' | b'n' | b'\\' | b'"' | b'[' | b']' | b'-' => 0,
                    _ => return Err(self.refuse("an unknown escape")),
                };
                self.at += 2;
                for _ in 0..digits {
                    if !self.peek().is_ascii_hexdigit() {
                        return Err(self.refuse("an escape with too few hexadecimal digits"));
                    }
                    self.at += 1;
                }
            }
            first => {
                // The text is UTF-8, so a leading byte tells the length.
                self.at += match first {
                    0xf0.. => 4,
                    0xe0.. => 3,
                    0xc0.. => 2,
                    _ => 1,
                };
            }
        }
        Ok(())
    }

    /// `( … )` as a rule of its own.
    fn group(&mut self) -> Result<usize, Refused> {
        let opened = self.at;
        self.at += 1;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.refuse("groups nested deeper than 64"));
        }
        self.space(true);
        let id = self.new_rule(opened);
        let alternates = self.alternates()?;
        self.rules[id].alternates = Some(alternates);
        if !self.takes(b')') {
            return Err(self.refuse_at(opened, "a group that does not end"));
        }
        self.nesting -= 1;
        Ok(id)
    }

    /// `{m}`, `{m,}` or `{m,n}`, after its brace: the least and the most repetitions.
    fn bounds(&mut self) -> Result<(u64, Option<u64>), Refused> {
        let nested = self.nesting > 0;
        self.at += 1;
        self.space(nested);
        let least = self.number()?;
        self.space(nested);
        if self.peek() == b'}' {
            return Ok((least, Some(least)));
        }
        if !self.takes(b',') {
            return Err(self.refuse("expected `,` or `}` after a number of repetitions"));
        }
        self.space(nested);
        let most = if self.peek().is_ascii_digit() {
            Some(self.number()?)
        } else {
            None
        };
        self.space(nested);
        if self.peek() != b'}' {
            return Err(self.refuse("expected `}` after numbers of repetitions"));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Result<u64, Refused> {
        let mut value = None;
        while self.peek().is_ascii_digit() {
            let digit = u64::from(self.peek() - b'0');
            // Far beyond any bound it may stand still.
            value = Some(value.unwrap_or(0u64).saturating_mul(10).saturating_add(digit));
            self.at += 1;
        }
        value.ok_or_else(|| self.refuse("expected a number of repetitions"))
    }

    /// Writes a repetition of the last part out as llama.cpp does: `least` copies, then a rule for each further one,
    /// or one that repeats itself.
    fn repeat(
        &mut self,
        symbols: &mut Vec<Symbol>,
        part: &mut Part,
        least: u64,
        most: Option<u64>,
    ) -> Result<(), Refused> {
        self.at += 1;
        if part.elements == 0 {
            return Err(self.refuse("a repetition of nothing"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.refuse("fewer repetitions at the most than at the least"));
        }
        let times = most.filter(|most| *most > 0).unwrap_or(least.max(1));
        if times.max(least) > MAX_REPETITIONS || part.rules.saturating_mul(times) > MAX_REPETITIONS {
            return Err(self.refuse("more than 2000 repetitions, those inside the part multiplied"));
        }
        let (Ok(copies), Ok(further)) = (
            usize::try_from(least),
            usize::try_from(most.map_or(1, |most| most - least)),
        ) else {
            return Err(self.refuse("more than 2000 repetitions"));
        };
        let repeated = symbols.split_off(part.start);
        self.grow(part.elements.saturating_mul(copies).saturating_sub(part.elements))?;
        self.grow((part.elements + 3).saturating_mul(further))?;
        for _ in 0..copies {
            symbols.extend_from_slice(&repeated);
        }
        let mut last = None;
        for _ in 0..further {
            let id = self.new_rule(self.at);
            let mut again = repeated.clone();
            again.extend(if most.is_none() { Some(id) } else { last }.map(Symbol::Rule));
            self.rules[id].alternates = Some(vec![again, Vec::new()]);
            last = Some(id);
        }
        symbols.extend(last.map(Symbol::Rule));
        part.elements = part.elements * copies + usize::from(last.is_some());
        part.rules = part.rules.saturating_mul(times);
        Ok(())
    }

    /// Follows what each rule may begin with.
    fn unfold(&self) -> Result<(), Refused> {
        let root = self.names.get(&b"root"[..]);
        if root.is_none_or(|id| self.rules[*id].alternates.is_none()) {
            return Err(self.refuse("no rule `root`"));
        }
        for rule in &self.rules {
            if rule.alternates.is_none() {
                return Err(self.refuse_at(rule.named_at, "a rule is named that is nowhere defined"));
            }
        }
        let mut states = vec![State::New; self.rules.len()];
        let mut all = 0usize;
        for id in 0..self.rules.len() {
            all = all.saturating_add(self.unfold_rule(id, &mut states, 0)?.ways);
        }
        if all > MAX_ALL_WAYS {
            return Err(self.refuse("rules that unfold in too many ways"));
        }
        Ok(())
    }

    fn unfold_rule(&self, id: usize, states: &mut [State], above: usize) -> Result<Unfolded, Refused> {
        let rule = &self.rules[id];
        match states[id] {
            State::Done(known) => return Ok(known),
            State::InProgress => {
                return Err(self.refuse_at(
                    rule.named_at,
                    "a rule can begin with itself, perhaps after parts that may be empty",
                ));
            }
            State::New => {}
        }
        let too_long = || {
            self.refuse_at(
                rule.named_at,
                "a chain of more than 512 rules that begin with each other",
            )
        };
        if above >= MAX_CHAIN {
            return Err(too_long());
        }
        states[id] = State::InProgress;
        let mut found = Unfolded {
            may_be_empty: false,
            ways: 1,
            chain: 1,
        };
        for sequence in rule.alternates.iter().flatten() {
            let mut open = true;
            for symbol in sequence {
                let Symbol::Rule(next) = symbol else {
                    open = false;
                    break;
                };
                let next = self.unfold_rule(*next, states, above + 1)?;
                found.ways = found.ways.saturating_add(next.ways);
                found.chain = found.chain.max(next.chain + 1);
                if !next.may_be_empty {
                    open = false;
                    break;
                }
            }
            found.may_be_empty |= open;
        }
        if found.chain > MAX_CHAIN {
            return Err(too_long());
        }
        if found.ways > MAX_WAYS {
            return Err(self.refuse_at(rule.named_at, "a rule that unfolds in too many ways"));
        }
        states[id] = State::Done(found);
        Ok(found)
    }
}

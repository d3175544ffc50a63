//! The guard before a chat template runs: what it may cost to compile, and which of its operations get scalars only.
//!
//! State: none. Callers: [`super::ChatTemplate`]. Not known here: what the template writes.
//!
//! The library's fuel counts instructions and bytes, and its parser bounds nesting. Four things escape both, each
//! shown by a test:
//! 1. Chains (`elif`, `-`, `+`, `.`, `|`) nest the syntax tree without nesting the source, and the tree is walked by
//!    recursion: a few thousand links overflow the stack. So the tokens of one tag and the `elif`s are counted, with
//!    the library's own lexer.
//! 2. A list inside a list inside a list shares its parts, so forty lines make a value whose comparison, printing or
//!    length takes 2^40 steps, and none of them costs fuel. So whatever a literal or an addition makes is counted with
//!    all that it holds, and must be small; only scalars are multiplied.
//! 3. A namespace inside itself is printed until the stack ends; the same count refuses namespaces.
//! 4. A slice is taken only when it is read, so a slice of a slice of a slice is read by recursion; each becomes a list
//!    at once, which fuel pays for.

use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};
use minijinja::machinery::{self, Token};
use minijinja::syntax::SyntaxConfig;

/// Most bytes of a template.
const MAX_BYTES: usize = 64 << 10;
/// Most tokens of one tag; real templates stay below a hundred.
const MAX_TAG_TOKENS: usize = 512;
/// Most `elif`s of a template.
const MAX_ELIFS: usize = 256;
/// The filter that lets only scalars through; see `environment.rs`.
pub const SCALAR: &str = "scalar";
/// The filter that lets scalars and small lists and maps through.
pub const SMALL: &str = "small";
/// The filter that makes a list of a slice.
pub const SLICED: &str = "sliced";

/// Jinja as chat templates are written for: a tag's line leaves no white space behind.
pub fn syntax() -> Result<SyntaxConfig, String> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| error.to_string())
}

/// Parses a template, guarded.
///
/// # Errors
/// What is wrong, in words.
pub fn parse(source: &str) -> Result<Stmt<'_>, String> {
    check_cost(source)?;
    let parsed = machinery::parse(source, super::NAME, syntax()?).map_err(|error| super::words(&error))?;
    statement(&parsed)
}

fn check_cost(source: &str) -> Result<(), String> {
    if source.len() > MAX_BYTES {
        return Err(format!("{} bytes, at most {MAX_BYTES} are taken", source.len()));
    }
    let (mut in_tag, mut elifs) = (0, 0);
    for token in machinery::tokenize(source, false, syntax()?) {
        match token.map_err(|error| super::words(&error))?.0 {
            Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        in_tag += 1;
        if in_tag > MAX_TAG_TOKENS {
            return Err(format!("a tag of more than {MAX_TAG_TOKENS} tokens"));
        }
        if elifs > MAX_ELIFS {
            return Err(format!("more than {MAX_ELIFS} times `elif`"));
        }
    }
    Ok(())
}

fn statements<'s>(body: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, String> {
    body.iter().map(statement).collect()
}

fn statement<'s>(stmt: &Stmt<'s>) -> Result<Stmt<'s>, String> {
    let refused = |name: &str| Err(format!("the tag `{name}`, which no chat template needs"));
    Ok(match stmt {
        Stmt::Template(node) => Stmt::Template(Spanned::new(
            ast::Template {
                children: statements(&node.children)?,
            },
            node.span(),
        )),
        Stmt::EmitExpr(node) => Stmt::EmitExpr(Spanned::new(
            ast::EmitExpr {
                expr: expression(&node.expr),
            },
            node.span(),
        )),
        Stmt::EmitRaw(node) => Stmt::EmitRaw(Spanned::new(ast::EmitRaw { raw: node.raw }, node.span())),
        Stmt::ForLoop(node) => Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target: target(&node.target),
                iter: expression(&node.iter),
                filter_expr: node.filter_expr.as_ref().map(expression),
                recursive: node.recursive,
                body: statements(&node.body)?,
                else_body: statements(&node.else_body)?,
            },
            node.span(),
        )),
        Stmt::IfCond(node) => Stmt::IfCond(Spanned::new(
            ast::IfCond {
                expr: expression(&node.expr),
                true_body: statements(&node.true_body)?,
                false_body: statements(&node.false_body)?,
            },
            node.span(),
        )),
        Stmt::Set(node) => Stmt::Set(Spanned::new(
            ast::Set {
                target: target(&node.target),
                expr: if sets_attribute(&node.target) {
                    filtered(SMALL, expression(&node.expr))
                } else {
                    expression(&node.expr)
                },
            },
            node.span(),
        )),
        Stmt::SetBlock(node) => Stmt::SetBlock(Spanned::new(
            ast::SetBlock {
                target: target(&node.target),
                filter: node.filter.as_ref().map(expression),
                body: statements(&node.body)?,
            },
            node.span(),
        )),
        Stmt::Macro(node) => Stmt::Macro(Spanned::new(
            ast::Macro {
                name: node.name,
                args: node.args.iter().map(target).collect(),
                defaults: node.defaults.iter().map(expression).collect(),
                body: statements(&node.body)?,
            },
            node.span(),
        )),
        Stmt::Continue(node) => Stmt::Continue(Spanned::new(ast::Continue, node.span())),
        Stmt::Break(node) => Stmt::Break(Spanned::new(ast::Break, node.span())),
        Stmt::WithBlock(_) => return refused("with"),
        Stmt::AutoEscape(_) => return refused("autoescape"),
        Stmt::FilterBlock(_) => return refused("filter"),
        Stmt::CallBlock(_) => return refused("call"),
        Stmt::Do(_) => return refused("do"),
    })
}

/// Whether an assignment writes into a namespace, in whole or in part.
fn sets_attribute(target: &Expr<'_>) -> bool {
    match target {
        Expr::Var(_) => false,
        Expr::List(node) => node.items.iter().any(sets_attribute),
        Expr::Tuple(node) => node.items.iter().any(sets_attribute),
        _ => true,
    }
}

/// The left side of an assignment, or a loop's names: kept as they are.
fn target<'s>(expr: &Expr<'s>) -> Expr<'s> {
    match expr {
        Expr::List(node) => Expr::List(Spanned::new(
            ast::List {
                items: node.items.iter().map(target).collect(),
            },
            node.span(),
        )),
        Expr::Tuple(node) => Expr::Tuple(Spanned::new(
            ast::Tuple {
                items: node.items.iter().map(target).collect(),
            },
            node.span(),
        )),
        other => expression(other),
    }
}

/// An operand that must be a scalar.
fn scalar<'s>(expr: &Expr<'s>) -> Expr<'s> {
    match expression(expr) {
        inner @ Expr::Const(_) => inner,
        inner => filtered(SCALAR, inner),
    }
}

fn filtered<'s>(name: &'static str, expr: Expr<'s>) -> Expr<'s> {
    let span = expr.span();
    Expr::Filter(Spanned::new(
        ast::Filter {
            name,
            expr: Some(expr),
            args: Vec::new(),
        },
        span,
    ))
}

fn expressions<'s>(list: &[Expr<'s>]) -> Vec<Expr<'s>> {
    list.iter().map(expression).collect()
}

fn arguments<'s>(args: &[CallArg<'s>]) -> Vec<CallArg<'s>> {
    args.iter()
        .map(|arg| match arg {
            CallArg::Pos(expr) => CallArg::Pos(expression(expr)),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, expression(expr)),
            CallArg::PosSplat(expr) => CallArg::PosSplat(expression(expr)),
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(expression(expr)),
        })
        .collect()
}

fn expression<'s>(expr: &Expr<'s>) -> Expr<'s> {
    let span = expr.span();
    match expr {
        Expr::Var(node) => Expr::Var(Spanned::new(ast::Var { id: node.id }, span)),
        Expr::Const(node) => Expr::Const(Spanned::new(
            ast::Const {
                value: node.value.clone(),
            },
            span,
        )),
        Expr::Slice(node) => filtered(
            SLICED,
            Expr::Slice(Spanned::new(
                ast::Slice {
                    expr: expression(&node.expr),
                    start: node.start.as_ref().map(expression),
                    stop: node.stop.as_ref().map(expression),
                    step: node.step.as_ref().map(expression),
                },
                span,
            )),
        ),
        Expr::UnaryOp(node) => Expr::UnaryOp(Spanned::new(
            ast::UnaryOp {
                op: match node.op {
                    ast::UnaryOpKind::Not => ast::UnaryOpKind::Not,
                    ast::UnaryOpKind::Neg => ast::UnaryOpKind::Neg,
                },
                expr: expression(&node.expr),
            },
            span,
        )),
        Expr::BinOp(node) => {
            let operand = match node.op {
                ast::BinOpKind::Mul => scalar,
                _ => expression,
            };
            let made = Expr::BinOp(Spanned::new(
                ast::BinOp {
                    op: node.op,
                    left: operand(&node.left),
                    right: operand(&node.right),
                },
                span,
            ));
            match node.op {
                ast::BinOpKind::Add => filtered(SMALL, made),
                _ => made,
            }
        }
        Expr::Compare(node) => Expr::Compare(Spanned::new(
            ast::Compare {
                expr: expression(&node.expr),
                ops: node
                    .ops
                    .iter()
                    .map(|op| ast::CompareOp {
                        op: op.op,
                        expr: expression(&op.expr),
                    })
                    .collect(),
            },
            span,
        )),
        Expr::IfExpr(node) => Expr::IfExpr(Spanned::new(
            ast::IfExpr {
                test_expr: expression(&node.test_expr),
                true_expr: expression(&node.true_expr),
                false_expr: node.false_expr.as_ref().map(expression),
            },
            span,
        )),
        Expr::Filter(node) => Expr::Filter(Spanned::new(
            ast::Filter {
                name: node.name,
                expr: node.expr.as_ref().map(expression),
                args: arguments(&node.args),
            },
            span,
        )),
        Expr::Test(node) => Expr::Test(Spanned::new(
            ast::Test {
                name: node.name,
                expr: expression(&node.expr),
                args: arguments(&node.args),
            },
            span,
        )),
        Expr::GetAttr(node) => Expr::GetAttr(Spanned::new(
            ast::GetAttr {
                expr: expression(&node.expr),
                name: node.name,
            },
            span,
        )),
        Expr::GetItem(node) => Expr::GetItem(Spanned::new(
            ast::GetItem {
                expr: expression(&node.expr),
                subscript_expr: expression(&node.subscript_expr),
            },
            span,
        )),
        Expr::Call(node) => Expr::Call(Spanned::new(
            ast::Call {
                expr: expression(&node.expr),
                args: arguments(&node.args),
            },
            span,
        )),
        Expr::List(node) => filtered(
            SMALL,
            Expr::List(Spanned::new(
                ast::List {
                    items: expressions(&node.items),
                },
                span,
            )),
        ),
        Expr::Tuple(node) => filtered(
            SMALL,
            Expr::Tuple(Spanned::new(
                ast::Tuple {
                    items: expressions(&node.items),
                },
                span,
            )),
        ),
        Expr::Map(node) => filtered(
            SMALL,
            Expr::Map(Spanned::new(
                ast::Map {
                    keys: expressions(&node.keys),
                    values: expressions(&node.values),
                },
                span,
            )),
        ),
    }
}

//! What a crate shows to its users, as text: every public item with its whole signature, in the order of the source.
//!
//! State: none. Used by the test that compares it with a golden file, so that a change of what authors see is seen in a
//! diff. It is read off the source and not asked of the compiler, so it needs no other toolchain: a macro's items stand as
//! the macro was called, and an item of a private module stands with the module it is in, whether or not it is re-exported.
//! Bodies, documentation and private fields are left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Attribute, Fields, File, ImplItem, Item, TraitItem, Visibility};

/// The attributes that are part of an item's contract.
const KEPT: [&str; 6] = ["derive", "repr", "must_use", "non_exhaustive", "cfg", "macro_export"];

/// One file of the crate: its module and its items.
struct Module {
    name: String,
    public: bool,
    items: Vec<Item>,
}

/// The public items of the crate whose `lib.rs` lies in `src`.
///
/// # Errors
/// The file that cannot be read or parsed, and why.
pub fn of(src: &Path) -> Result<String, String> {
    let mut modules = Vec::new();
    read(&src.join("lib.rs"), "crate", true, &mut modules)?;
    let types: BTreeSet<String> = modules
        .iter()
        .flat_map(|module| &module.items)
        .filter_map(type_name)
        .collect();
    let mut text = String::new();
    for module in modules {
        let items: Vec<Item> = module
            .items
            .into_iter()
            .filter_map(|item| shown(item, &types))
            .collect();
        if items.is_empty() {
            continue;
        }
        let private = if module.public { "" } else { ", private" };
        text.push_str(&format!("// {}{private}\n\n", module.name));
        text.push_str(&prettyplease::unparse(&File {
            shebang: None,
            attrs: Vec::new(),
            items,
        }));
        text.push('\n');
    }
    Ok(text)
}

/// Reads a file and the modules that it names.
fn read(path: &Path, name: &str, public: bool, modules: &mut Vec<Module>) -> Result<(), String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| at(&error))?;
    let file = syn::parse_file(&text).map_err(|error| at(&error))?;
    let (mut items, mut inner) = (Vec::new(), Vec::new());
    for item in file.items {
        match item {
            Item::Mod(module) if module.content.is_none() => {
                let of_tests = module.attrs.iter().any(is_test);
                if !of_tests {
                    inner.push((module.ident.to_string(), is_public(&module.vis)));
                }
            }
            other => items.push(other),
        }
    }
    modules.push(Module {
        name: name.to_owned(),
        public,
        items,
    });
    let is_root = path.ends_with("lib.rs") || path.ends_with("mod.rs");
    let folder: PathBuf = if is_root {
        path.parent().unwrap_or(path).to_owned()
    } else {
        path.with_extension("")
    };
    for (module, visible) in inner {
        let beside = folder.join(format!("{module}.rs"));
        let file = if beside.exists() {
            beside
        } else {
            folder.join(&module).join("mod.rs")
        };
        read(&file, &format!("{name}::{module}"), public && visible, modules)?;
    }
    Ok(())
}

fn is_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute
            .parse_args::<syn::Path>()
            .is_ok_and(|path| path.is_ident("test"))
}

const fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The name of a public type or trait.
fn type_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Union(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_public(visibility).then(|| name.to_string())
}

/// What of an item is shown; none of a private one.
fn shown(mut item: Item, types: &BTreeSet<String>) -> Option<Item> {
    match &mut item {
        Item::Const(item) => visible(&item.vis, &mut item.attrs)?,
        Item::Static(item) => visible(&item.vis, &mut item.attrs)?,
        Item::Type(item) => visible(&item.vis, &mut item.attrs)?,
        Item::Use(item) => visible(&item.vis, &mut item.attrs)?,
        Item::Enum(item) => {
            visible(&item.vis, &mut item.attrs)?;
            for variant in &mut item.variants {
                keep(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| keep(&mut field.attrs));
            }
        }
        Item::Struct(item) => {
            visible(&item.vis, &mut item.attrs)?;
            without_private(&mut item.fields);
        }
        Item::Fn(item) => {
            visible(&item.vis, &mut item.attrs)?;
            item.block.stmts.clear();
        }
        Item::Trait(item) => {
            visible(&item.vis, &mut item.attrs)?;
            item.items.iter_mut().for_each(trait_item);
        }
        Item::Impl(item) => {
            let syn::Type::Path(path) = &*item.self_ty else {
                return None;
            };
            let name = path.path.segments.last()?.ident.to_string();
            if !types.contains(&name) {
                return None;
            }
            keep(&mut item.attrs);
            let of_trait = item.trait_.is_some();
            item.items = std::mem::take(&mut item.items)
                .into_iter()
                .filter_map(|inner| impl_item(inner, of_trait))
                .collect();
            if item.items.is_empty() && !of_trait {
                return None;
            }
        }
        Item::Macro(item) => {
            let exported = item
                .attrs
                .iter()
                .any(|attribute| attribute.path().is_ident("macro_export"));
            if item.mac.path.is_ident("macro_rules") {
                if !exported {
                    return None;
                }
                item.mac.tokens = patterns(item.mac.tokens.clone());
            } else {
                item.mac.tokens = without_docs(item.mac.tokens.clone());
            }
            keep(&mut item.attrs);
        }
        _ => return None,
    }
    Some(item)
}

/// Keeps a public item's attributes; none of a private one.
fn visible(visibility: &Visibility, attributes: &mut Vec<Attribute>) -> Option<()> {
    keep(attributes);
    is_public(visibility).then_some(())
}

fn keep(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| KEPT.iter().any(|name| attribute.path().is_ident(name)));
}

/// Private fields are nobody's business; a place among others is.
fn without_private(fields: &mut Fields) {
    let hide = |field: &mut syn::Field| {
        keep(&mut field.attrs);
        if !is_public(&field.vis) {
            field.ty = syn::parse_quote!(_);
        }
    };
    match fields {
        Fields::Named(fields) => {
            let named = std::mem::take(&mut fields.named);
            fields.named = named.into_iter().filter(|field| is_public(&field.vis)).collect();
            fields.named.iter_mut().for_each(hide);
        }
        Fields::Unnamed(fields) => fields.unnamed.iter_mut().for_each(hide),
        Fields::Unit => {}
    }
}

fn trait_item(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(item) => {
            keep(&mut item.attrs);
            if let Some(default) = &mut item.default {
                default.stmts.clear();
            }
        }
        TraitItem::Const(item) => keep(&mut item.attrs),
        TraitItem::Type(item) => keep(&mut item.attrs),
        _ => {}
    }
}

fn impl_item(mut item: ImplItem, of_trait: bool) -> Option<ImplItem> {
    let (visibility, attributes) = match &mut item {
        ImplItem::Fn(item) => {
            item.block.stmts.clear();
            (&item.vis, &mut item.attrs)
        }
        ImplItem::Const(item) => (&item.vis, &mut item.attrs),
        ImplItem::Type(item) => (&item.vis, &mut item.attrs),
        ImplItem::Macro(item) => {
            item.mac.tokens = without_docs(item.mac.tokens.clone());
            return Some(ImplItem::Macro(item.clone()));
        }
        _ => return None,
    };
    keep(attributes);
    (of_trait || is_public(visibility)).then_some(item)
}

/// What a macro may be called with, without what it becomes.
fn patterns(rules: TokenStream) -> TokenStream {
    let groups = rules.into_iter().filter(|token| matches!(token, TokenTree::Group(_)));
    let patterns: Vec<TokenTree> = groups.step_by(2).collect();
    quote::quote!(#(#patterns => {};)*)
}

/// Tokens without documentation, which would change the file without changing the contract.
fn without_docs(tokens: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        let is_doc = match &token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let first = group.stream().into_iter().next();
                first.is_some_and(|first| first.to_string() == "doc")
            }
            _ => false,
        };
        let hash = matches!(kept.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == '#');
        if is_doc && hash {
            kept.pop();
            continue;
        }
        kept.push(match token {
            TokenTree::Group(group) => {
                TokenTree::Group(proc_macro2::Group::new(group.delimiter(), without_docs(group.stream())))
            }
            other => other,
        });
    }
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_things_and_bodies_are_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writes");
        write(
            "lib.rs",
            "//! D.\npub mod a;\nmod b;\npub use b::Seen;\n#[cfg(test)]\nmod tests;\nfn hidden() {}\n\
             #[macro_export]\nmacro_rules! m { ($x:expr) => { hidden($x) }; }\nmake! { /// D.\n one = 1; }\n",
        );
        write(
            "a.rs",
            "/// D.\n#[derive(Clone)]\n#[allow(x)]\npub struct S { pub x: u8, y: u8 }\nimpl S {\n pub fn f(&self) -> u8 { \
             self.x }\n fn g() {}\n}\nstruct P;\nimpl P { pub fn h() {} }\npub trait T { fn d(&self) { 1 + 1; } }\n",
        );
        write("b.rs", "pub struct Seen(u8, pub u16);\npub(crate) struct Inner;\n");
        let text = of(folder.path()).expect("parses");
        for word in [
            "pub struct S",
            "pub x: u8",
            "pub fn f(&self) -> u8 {}",
            "fn d(&self) {}",
            "Seen(_, pub u16)",
            "one = 1",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
        for word in ["D.", "y: u8", "self.x", "fn g", "fn h", "hidden", "Inner", "allow"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        assert!(text.contains("// crate::b, private"), "{text}");
    }
}

//! The layout of every type that crosses, as stable text, and the first difference between two layouts.
//!
//! Owns no state. `tests/abi` compares the text with its golden file; [`crate::module::open`] uses the difference to
//! say in one line why a library does not fit, where abi_stable's own report has hundreds. The text has names, sizes,
//! alignments, fields and function types, and neither addresses nor versions nor source lines.

use std::collections::HashMap;

use abi_stable::{
    sabi_types::Constructor,
    type_layout::{TLData, TLField, TLFields, TLFunction, TLPrimitive, TypeLayout},
};

/// One type: its name, what it is, and its fields by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeEntry {
    /// The type with its parameters, for example `RVec<u8>`.
    pub name: String,
    /// Kind, size, alignment, representation, and where it is defined.
    pub shape: String,
    /// Fields, methods or variants in order: name and type.
    pub fields: Vec<(String, String)>,
}

impl TypeEntry {
    /// The entry as lines of text.
    #[must_use]
    pub fn lines(&self) -> String {
        let head = format!("{}\n    {}\n", self.name, self.shape);
        self.fields
            .iter()
            .fold(head, |text, (name, of)| text + &format!("    {name}: {of}\n"))
    }
}

/// Every type that `root` reaches, breadth first from `root`, each once.
///
/// `root` may come from another library, as long as that one was built with the same version of abi_stable.
#[must_use]
pub fn entries(root: &'static TypeLayout) -> Vec<TypeEntry> {
    let mut walk = Walk::default();
    walk.visit(root);
    let mut entries = Vec::new();
    while let Some((name, layout)) = walk.types.get(entries.len()).cloned() {
        entries.push(walk.entry(name, layout));
    }
    entries
}

/// The first thing in which a plugin's layout differs from the host's, as one line; none when they are equal.
#[must_use]
pub fn first_difference(host: &[TypeEntry], plugin: &[TypeEntry]) -> Option<String> {
    let theirs: HashMap<&str, &TypeEntry> = plugin.iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let pairs = || {
        host.iter()
            .filter_map(|ours| theirs.get(ours.name.as_str()).map(|theirs| (ours, *theirs)))
    };
    // A changed field is the cause; a changed size alone is the echo of one further in.
    pairs()
        .find_map(|(ours, theirs)| field_difference(ours, theirs))
        .or_else(|| {
            let (ours, theirs) = pairs().rfind(|(ours, theirs)| ours.shape != theirs.shape)?;
            Some(format!(
                "layout of {}: plugin {}, host supports {}",
                ours.name, theirs.shape, ours.shape
            ))
        })
        .or_else(|| {
            let lost = host.iter().find(|ours| !theirs.contains_key(ours.name.as_str()))?;
            Some(format!(
                "layout of {}: plugin lacks it, host supports {}",
                lost.name, lost.shape
            ))
        })
}

fn field_difference(ours: &TypeEntry, theirs: &TypeEntry) -> Option<String> {
    let name = &ours.name;
    let find = |fields: &[(String, String)], wanted: &str| {
        fields
            .iter()
            .find(|(field, _)| field == wanted)
            .map(|(_, of)| of.clone())
    };
    for (field, plugin) in &theirs.fields {
        match find(&ours.fields, field) {
            None => {
                return Some(format!(
                    "layout of {name}.{field}: plugin {plugin}, host supports no such field"
                ));
            }
            Some(host) if host != *plugin => {
                return Some(format!(
                    "layout of {name}.{field}: plugin {plugin}, host supports {host}"
                ));
            }
            Some(_) => {}
        }
    }
    for (field, host) in &ours.fields {
        if find(&theirs.fields, field).is_none() {
            return Some(format!(
                "layout of {name}.{field}: plugin has no such field, host supports {host}"
            ));
        }
    }
    let order = |entry: &TypeEntry| {
        entry
            .fields
            .iter()
            .map(|(f, _)| f.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (host, plugin) = (order(ours), order(theirs));
    (host != plugin).then(|| format!("layout of {name}: plugin fields {plugin}, host supports {host}"))
}

/// How deep a type's name follows its parameters.
const MAX_DEPTH: usize = 8;

/// The types found so far with their names, in the order of the visit; the first ones are written already.
#[derive(Default)]
struct Walk {
    types: Vec<(String, &'static TypeLayout)>,
}

impl Walk {
    /// The type's name; a type that is new is queued. Two types of one name are told apart by a number.
    fn visit(&mut self, layout: &'static TypeLayout) -> String {
        if let Some((name, _)) = self.types.iter().find(|(_, known)| *known == layout) {
            return name.clone();
        }
        let name = name_of(layout, MAX_DEPTH);
        let namesakes = self
            .types
            .iter()
            .filter(|(known, _)| known.split('#').next() == Some(&name))
            .count();
        let name = if namesakes == 0 {
            name
        } else {
            format!("{name}#{}", namesakes + 1)
        };
        self.types.push((name.clone(), layout));
        name
    }

    fn entry(&mut self, name: String, layout: &'static TypeLayout) -> TypeEntry {
        let mut fields = Vec::new();
        let kind = match layout.data() {
            TLData::Primitive(primitive) => format!("primitive {primitive:?}"),
            TLData::Opaque => "opaque".to_owned(),
            TLData::Struct { fields: all } => {
                self.fields("", all, &mut fields);
                "struct".to_owned()
            }
            TLData::Union { fields: all } => {
                self.fields("", all, &mut fields);
                "union".to_owned()
            }
            TLData::Enum(of) => {
                let mut all = of.fields.iter();
                for (i, (variant, count)) in of.variant_names_iter().zip(of.field_count.iter()).enumerate() {
                    fields.push((variant.to_owned(), format!("variant {i}")));
                    for field in all.by_ref().take(usize::from(*count)) {
                        self.field(&format!("{variant}."), field, &mut fields);
                    }
                }
                format!(
                    "enum {:?} exhaustive {}",
                    of.discriminants,
                    of.exhaustiveness.is_exhaustive()
                )
            }
            TLData::PrefixType(of) => {
                self.fields("", of.fields, &mut fields);
                format!("prefix type, suffix from field {}", of.first_suffix_field)
            }
        };
        self.fields("phantom ", layout.phantom_fields(), &mut fields);
        for of in layout.generics().type_params() {
            self.visit(Constructor(*of).get());
        }
        let (size, align, repr) = (layout.size(), layout.alignment(), layout.repr_attr());
        let (package, path) = (layout.package(), layout.mod_path());
        let nonzero = if layout.is_nonzero() { ", never zero" } else { "" };
        let lifetimes: Vec<&str> = layout.generics().lifetimes().filter(|name| !name.is_empty()).collect();
        let lifetimes = if lifetimes.is_empty() {
            String::new()
        } else {
            format!(", {}", lifetimes.join(" "))
        };
        let shape = format!("{kind}, size {size}, align {align}, {repr:?}{nonzero}{lifetimes}, {package} {path}");
        TypeEntry {
            name,
            shape: one_space(&shape),
            fields,
        }
    }

    fn fields(&mut self, prefix: &str, all: TLFields, into: &mut Vec<(String, String)>) {
        for field in all {
            self.field(prefix, field, into);
        }
    }

    fn field(&mut self, prefix: &str, field: TLField, into: &mut Vec<(String, String)>) {
        let functions: Vec<String> = field
            .function_range()
            .iter()
            .map(|function| self.function(&function))
            .collect();
        let mut of = if field.is_function() {
            String::new()
        } else {
            self.visit(field.layout())
        };
        of.push_str(&functions.join("; "));
        let lifetimes = field.lifetime_indices();
        if !lifetimes.is_empty() {
            of.push_str(&format!(" with lifetimes {:?}", lifetimes.as_slice()));
        }
        into.push((format!("{prefix}{}", field.name()), one_space(&of)));
    }

    fn function(&mut self, function: &TLFunction) -> String {
        let qualifier = if function.fn_qualifs.is_unsafe() { "unsafe " } else { "" };
        let of = function
            .param_type_layouts
            .iter()
            .map(|layout| self.visit(Constructor(layout).get()));
        let parameters = of.collect::<Vec<_>>().join(", ");
        let returned = function
            .return_type_layout()
            .map(|layout| self.visit(Constructor(layout).get()));
        let returned = returned.map_or_else(String::new, |name| format!(" -> {name}"));
        let lifetimes = function.paramret_lifetime_indices;
        let lifetimes = if lifetimes.is_empty() {
            String::new()
        } else {
            format!(" with lifetimes {:?}", lifetimes.as_slice())
        };
        format!("{qualifier}fn({parameters}){returned}{lifetimes}")
    }
}

/// The type's name with its parameters. abi_stable keeps no list of them: they are read off the fields that show them.
fn name_of(layout: &'static TypeLayout, depth: usize) -> String {
    let Some(depth) = depth.checked_sub(1) else {
        return "…".to_owned();
    };
    let phantom = || {
        layout
            .phantom_fields()
            .iter()
            .next()
            .map(|field| name_of(field.layout(), depth))
    };
    let target = || phantom().unwrap_or_default();
    let base = layout.name();
    let shown: Vec<String> = match layout.data() {
        TLData::Primitive(TLPrimitive::SharedRef) => return format!("&{}", target()),
        TLData::Primitive(TLPrimitive::MutRef) => return format!("&mut {}", target()),
        TLData::Primitive(TLPrimitive::ConstPtr) => return format!("*const {}", target()),
        TLData::Primitive(TLPrimitive::MutPtr) => return format!("*mut {}", target()),
        TLData::Primitive(TLPrimitive::Array) => return format!("[{}]", target()),
        TLData::Enum(of) if layout.package() == "abi_stable" => {
            of.fields.iter().map(|field| name_of(field.layout(), depth)).collect()
        }
        TLData::Struct { fields } if layout.package() == "abi_stable" => fields
            .iter()
            .filter(|field| field.layout().name() == "PhantomData")
            .filter_map(|field| {
                Some(
                    name_of(field.layout(), depth)
                        .strip_prefix("PhantomData<")?
                        .strip_suffix('>')?
                        .to_owned(),
                )
            })
            .chain(phantom())
            .collect(),
        TLData::Struct { fields } if base == "NonNull" => fields
            .iter()
            .filter_map(|field| Some(name_of(field.layout(), depth).strip_prefix("*const ")?.to_owned()))
            .collect(),
        TLData::Struct { .. } if base == "PhantomData" => phantom().into_iter().collect(),
        _ => Vec::new(),
    };
    if shown.is_empty() {
        base.to_owned()
    } else {
        format!("{base}<{}>", shown.join(", "))
    }
}

fn one_space(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use abi_stable::StableAbi;

    use super::{TypeEntry, entries, first_difference};
    use crate::{MemoryReport, SynapsePlugin_Ref};

    fn field(name: &str, of: &str) -> (String, String) {
        (name.to_owned(), of.to_owned())
    }

    fn report(change: impl FnOnce(&mut TypeEntry)) -> Option<String> {
        let host = entries(SynapsePlugin_Ref::LAYOUT);
        let mut plugin = host.clone();
        change(
            plugin
                .iter_mut()
                .find(|entry| entry.name == "MemoryReport")
                .expect("reached"),
        );
        first_difference(&host, &plugin)
    }

    #[test]
    fn the_walk_reaches_what_functions_take_and_give() {
        let host = entries(SynapsePlugin_Ref::LAYOUT);
        for name in [
            "Descriptor",
            "TokenBatch",
            "GenerateOptions",
            "TokenSink",
            "HostServices",
            "Flow",
        ] {
            assert!(host.iter().any(|entry| entry.name == name), "{name} is not reached");
        }
        assert_eq!(entries(MemoryReport::LAYOUT)[0].fields[0], field("model_bytes", "u64"));
    }

    #[test]
    fn a_difference_names_the_type_and_the_field() {
        assert_eq!(report(|_| {}), None);
        let added = report(|entry| entry.fields.push(field("novel", "u64")));
        assert_eq!(
            added.as_deref(),
            Some("layout of MemoryReport.novel: plugin u64, host supports no such field")
        );
        let lost = report(|entry| drop(entry.fields.remove(0)));
        assert_eq!(
            lost.as_deref(),
            Some("layout of MemoryReport.model_bytes: plugin has no such field, host supports u64")
        );
        let other = report(|entry| entry.fields[1].1 = "u32".to_owned());
        assert_eq!(
            other.as_deref(),
            Some("layout of MemoryReport.scratch_bytes: plugin u32, host supports u64")
        );
        let moved = report(|entry| entry.fields.swap(0, 1)).expect("differs");
        assert!(moved.contains("plugin fields scratch_bytes, model_bytes"), "{moved}");
        let grown = report(|entry| entry.shape.push('!')).expect("differs");
        assert!(
            grown.starts_with("layout of MemoryReport: plugin struct, size 48"),
            "{grown}"
        );
    }
}

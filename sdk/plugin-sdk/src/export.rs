//! What a library exports: the root module's functions over a [`Plugin`], and the macro that emits them.
//!
//! Owns the one [`Plugin`] of the library, made at first use. Called by the host through the root module.

use std::sync::OnceLock;

use crate::{
    api::{
        Descriptor, EmbedEngineObject, EngineError, ExtensionHeader, ExtensionRef, ExtensionTable,
        GenerateEngineObject, HostServices, KeyValue, RerankEngineObject,
        abi_stable::std_types::{ROption, RResult, RVec},
        ext::environment::{EnvironmentReport, EnvironmentTable},
    },
    error::Error,
    host::Host,
    plugin::Plugin,
    shim::guard::{contain, install_panic_hook},
};

/// The plugin behind a library's exports. Made by [`crate::export_plugin!`].
pub struct Exported {
    id: &'static str,
    version: &'static str,
    build: fn() -> Plugin,
    plugin: OnceLock<Plugin>,
    environment: OnceLock<EnvironmentTable>,
}

impl Exported {
    /// The exports of a plugin that is built by `build` at first use.
    #[must_use]
    pub const fn new(id: &'static str, version: &'static str, build: fn() -> Plugin) -> Self {
        Self {
            id,
            version,
            build,
            plugin: OnceLock::new(),
            environment: OnceLock::new(),
        }
    }

    /// Prepares the library: contained panics go to the host's log instead of stderr.
    pub fn prepare(&self) {
        install_panic_hook();
    }

    fn plugin(&self) -> &Plugin {
        self.plugin.get_or_init(self.build)
    }

    /// The root module's `describe`. A panic of the author gives a descriptor that serves nothing and whose `extra`
    /// says so under `error`.
    #[must_use]
    pub fn describe(&self) -> Descriptor {
        let described = contain("describe", || {
            let plugin = self.plugin();
            Ok(Descriptor {
                id: self.id.into(),
                package_version: self.version.into(),
                identity: plugin.identity.inner.clone(),
                supports: plugin.supports.iter().map(|support| support.0.clone()).collect(),
                extra: plugin
                    .facts
                    .iter()
                    .map(|(key, value)| KeyValue::new(key.as_str(), value.as_str()))
                    .collect(),
            })
        });
        described.unwrap_or_else(|error| Descriptor {
            id: self.id.into(),
            package_version: self.version.into(),
            identity: crate::plugin::Identity::new(self.id, "0").inner,
            supports: RVec::new(),
            extra: vec![KeyValue::new("error", error.message)].into(),
        })
    }

    /// The root module's `embed`.
    #[must_use]
    pub fn embed(&self, host: HostServices, config: &str) -> RResult<ROption<EmbedEngineObject>, EngineError> {
        answer("embed", || self.plugin().open_embed(Host::new(host), config))
    }

    /// The root module's `rerank`.
    #[must_use]
    pub fn rerank(&self, host: HostServices, config: &str) -> RResult<ROption<RerankEngineObject>, EngineError> {
        answer("rerank", || self.plugin().open_rerank(Host::new(host), config))
    }

    /// The root module's `generate`.
    #[must_use]
    pub fn generate(&self, host: HostServices, config: &str) -> RResult<ROption<GenerateEngineObject>, EngineError> {
        answer("generate", || self.plugin().open_generate(Host::new(host), config))
    }

    /// The root module's `extension`: `synapse.environment/1` when the plugin reports one.
    #[must_use]
    pub fn extension(&'static self, id: &str) -> ROption<ExtensionRef<'static>> {
        let found = contain("extension", || {
            if id != EnvironmentTable::ID || self.plugin().environment.is_none() {
                return Ok(None);
            }
            let state = std::ptr::from_ref(self).cast();
            Ok(Some(ExtensionRef::new(self.environment.get_or_init(|| {
                EnvironmentTable {
                    header: ExtensionHeader::of::<EnvironmentTable>(),
                    state,
                    report: report_environment,
                }
            }))))
        });
        found.ok().flatten().into()
    }

    /// The root module's `shutdown`.
    pub fn shutdown(&self) {
        let _ = contain("shutdown", || {
            if let Some(stop) = self.plugin.get().and_then(|plugin| plugin.shutdown.as_ref()) {
                stop();
            }
            Ok(())
        });
    }
}

/// Contains a function of the root module.
fn answer<T>(name: &str, author: impl FnOnce() -> Result<Option<T>, Error>) -> RResult<ROption<T>, EngineError> {
    match contain(name, author) {
        Ok(engine) => RResult::ROk(engine.into()),
        Err(error) => RResult::RErr(error.into()),
    }
}

/// The table's function.
///
/// # Safety
/// `state` is the [`Exported`] that made the table.
unsafe extern "C" fn report_environment(state: *const ()) -> RResult<EnvironmentReport, EngineError> {
    let report = contain("environment", || {
        // SAFETY: the caller passes the table's own state, which is a static of the library.
        let exported = unsafe { &*state.cast::<Exported>() };
        match exported.plugin().environment {
            Some(report) => report(),
            None => Err(Error::unsupported("this plugin reports no environment")),
        }
    });
    match report {
        Ok(report) => RResult::ROk(report),
        Err(error) => RResult::RErr(error.into()),
    }
}

/// Exports a plugin from a `cdylib`: the magic symbol, the note section and abi_stable's root module.
///
/// `export_plugin!(id: "toy", plugin: make)` where `make` is `fn() -> Plugin` and the id is the bundle's directory
/// name. Once per library; the version is the crate's own.
#[macro_export]
macro_rules! export_plugin {
    (id: $id:expr, plugin: $plugin:path $(,)?) => {
        $crate::api::emit_magic!($id, ::core::env!("CARGO_PKG_VERSION"));

        const _: () = {
            use $crate::api::abi_stable::{
                prefix_type::PrefixTypeTrait as _,
                std_types::{ROption, RResult, RStr},
            };
            use $crate::api::{
                Descriptor, EmbedEngineObject, EngineError, ExtensionRef, GenerateEngineObject, HostServices,
                RerankEngineObject, SynapsePlugin, SynapsePlugin_Ref,
            };

            static EXPORTED: $crate::export::Exported =
                $crate::export::Exported::new($id, ::core::env!("CARGO_PKG_VERSION"), $plugin);

            extern "C" fn describe() -> Descriptor {
                EXPORTED.describe()
            }
            extern "C" fn embed(h: HostServices, c: RStr<'_>) -> RResult<ROption<EmbedEngineObject>, EngineError> {
                EXPORTED.embed(h, c.as_str())
            }
            extern "C" fn rerank(h: HostServices, c: RStr<'_>) -> RResult<ROption<RerankEngineObject>, EngineError> {
                EXPORTED.rerank(h, c.as_str())
            }
            extern "C" fn generate(
                h: HostServices,
                c: RStr<'_>,
            ) -> RResult<ROption<GenerateEngineObject>, EngineError> {
                EXPORTED.generate(h, c.as_str())
            }
            extern "C" fn extension(id: RStr<'_>) -> ROption<ExtensionRef<'static>> {
                EXPORTED.extension(id.as_str())
            }
            extern "C" fn shutdown() {
                EXPORTED.shutdown();
            }
            fn root_module() -> SynapsePlugin_Ref {
                EXPORTED.prepare();
                SynapsePlugin {
                    describe,
                    embed,
                    rerank,
                    generate,
                    extension,
                    shutdown,
                }
                .leak_into_prefix()
            }

            $crate::api::export_root_module!(root_module);
        };
    };
}

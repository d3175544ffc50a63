//! One graph ready to run: several calls at once, each of which can be ended.
//!
//! Owns the session. Callers: [`crate::encoder`]. The calls go to onnxruntime's C function `Run`, which its
//! documentation allows from several threads on one session; the Rust wrapper takes `&mut self` there, which would
//! turn `preempt = share` into one call at a time.

use std::ffi::CString;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ort::AsPointer;
use ort::environment::Environment;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use ort::value::{DynValue, TensorElementType, ValueType};
use synapse_plugin_sdk::prelude::*;

/// How often a running call looks whether it should end.
const CANCEL_POLL: Duration = Duration::from_millis(5);
/// Below this many tokens a call ends sooner than a watcher pays for.
const WATCHED_TOKENS: usize = 256;

/// A file outside the model that holds initializers.
pub struct External {
    /// Its name in the model.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// One input or output of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The element type.
    pub ty: TensorElementType,
    /// The shape; -1 where it is open.
    pub shape: Vec<i64>,
}

/// A loaded graph.
pub struct Graph {
    session: Session,
    /// What it takes.
    pub inputs: Vec<Port>,
    /// What it gives.
    pub outputs: Vec<Port>,
}

impl Graph {
    /// Loads a graph with `threads` threads for each call.
    ///
    /// # Errors
    /// ARTIFACT_INVALID with the runtime's words.
    pub fn load(
        environment: &Environment,
        model: &[u8],
        external: Vec<External>,
        threads: usize,
    ) -> Result<Self, Error> {
        let session = build(environment, model, external, threads)
            .map_err(|error| Error::artifact_invalid(format!("onnxruntime refuses the model: {error}")))?;
        let ports = |outlets: &[ort::value::Outlet]| {
            outlets
                .iter()
                .map(|outlet| match outlet.dtype() {
                    ValueType::Tensor { ty, shape, .. } => Ok(Port {
                        name: outlet.name().to_owned(),
                        ty: *ty,
                        shape: shape.to_vec(),
                    }),
                    other => {
                        let name = outlet.name();
                        Err(Error::artifact_invalid(format!(
                            "{name} is {other:?}, expected a tensor"
                        )))
                    }
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let (inputs, outputs) = (ports(session.inputs())?, ports(session.outputs())?);
        Ok(Self {
            session,
            inputs,
            outputs,
        })
    }

    /// Runs the graph for one output. `inputs` are in the order of [`Graph::inputs`].
    ///
    /// # Errors
    /// CANCELLED, or INVALID_ARGUMENT with the runtime's words (a token id outside the table, say).
    pub fn run(&self, call: &Call<'_>, inputs: &[DynValue], output: &str, tokens: usize) -> Result<DynValue, Error> {
        let refuse = |error: ort::Error| Error::invalid_argument(format!("onnxruntime: {error}"));
        let mut options = RunOptions::new().map_err(refuse)?;
        // Gives memory back after a large batch instead of keeping the largest one for ever.
        options
            .set("memory.enable_memory_arena_shrinkage", "cpu:0")
            .map_err(refuse)?;
        let names: Vec<&str> = self.inputs.iter().map(|port| port.name.as_str()).collect();
        if tokens < WATCHED_TOKENS {
            return run_shared(&self.session, &options, &names, inputs, output).map_err(refuse);
        }
        let ended = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    if call.cancelled() {
                        // That the call has just ended is as good.
                        let _ = options.terminate();
                        return;
                    }
                    std::thread::park_timeout(CANCEL_POLL);
                }
            });
            let result = run_shared(&self.session, &options, &names, inputs, output);
            ended.store(true, Ordering::Release);
            result
        });
        match result {
            Err(_) if call.cancelled() => Err(Error::cancelled()),
            result => result.map_err(refuse),
        }
    }
}

fn build(environment: &Environment, model: &[u8], external: Vec<External>, threads: usize) -> ort::Result<Session> {
    let mut builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        // Two calls with spinning pools on a small machine starve each other.
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?;
    for External { name, bytes } in external {
        builder = builder.with_external_initializer_file_in_memory(name, Arc::from(bytes))?;
    }
    builder.commit_from_memory(model)
}

/// Runs a session that other threads may be running too.
fn run_shared(
    session: &Session,
    options: &RunOptions<NoSelectedOutputs>,
    names: &[&str],
    inputs: &[DynValue],
    output: &str,
) -> ort::Result<DynValue> {
    let c_string = |name: &str| CString::new(name).map_err(|_| ort::Error::new("a name holds a zero byte"));
    let names: Vec<CString> = names.iter().map(|name| c_string(name)).collect::<ort::Result<_>>()?;
    let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let values: Vec<_> = inputs.iter().map(AsPointer::ptr).collect();
    let output = c_string(output)?;
    let mut result: *mut ort::sys::OrtValue = null_mut();
    // SAFETY: session, options and values outlive the call and are of the types that the function takes; names and
    // values have the same length (checked by the caller, which makes one value a port); the output slot is null, so
    // the runtime allocates the value. `Run` may be called from several threads on one session.
    let status = unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            options.ptr(),
            names.as_ptr(),
            values.as_ptr(),
            values.len().min(names.len()),
            [output.as_ptr()].as_ptr(),
            1,
            &raw mut result,
        )
    };
    check(status)?;
    let result = NonNull::new(result).ok_or_else(|| ort::Error::new("no output"))?;
    // SAFETY: the runtime made the value in this call and nobody else holds it.
    Ok(unsafe { DynValue::from_ptr(result, Some(session.allocator())) })
}

/// Turns a status into an error and frees it.
fn check(status: ort::sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: the status comes from a call just made and is given away here.
    unsafe { ort::Error::result_from_status(status) }
}

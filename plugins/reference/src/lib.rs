//! A deterministic toy engine: tutorial, test stand-in and fault injector.

//! Message types and framing of the Synapse sockets.

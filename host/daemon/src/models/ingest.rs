//! Ingest: from arrived files to an installed model.

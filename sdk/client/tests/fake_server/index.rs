//! The spaces of an index: what is asked before a write, what is kept, and what a verdict does.

use serde_json::json;
use synapse_client::{Client, EmbedQueryParams, IndexError, IndexSpaces};

use crate::daemon::FakeDaemon;

/// Proves ALIAS-08 and ALIAS-10 on the client's side: every write is preceded by a question about all that the index holds.
#[tokio::test]
async fn every_write_is_asked_about_and_a_refused_one_changes_nothing() {
    let daemon = FakeDaemon::new();
    let client = Client::connect(daemon.options()).await.unwrap();
    let mut peer = daemon.accept().await;
    let file = daemon.folder.path().join("notes.spaces.json");
    let mut spaces = IndexSpaces::load(&file).unwrap();
    assert_eq!(spaces.fingerprint(), None);

    let script = async {
        let request = peer.request().await;
        assert_eq!(request["method"], "aliases.check_index");
        assert_eq!(
            request["params"],
            json!({"index_fingerprint": "a", "provenance_set": ["a"]})
        );
        peer.answer(&request, 1, json!({"table_epoch": 4, "verdict": "valid"}))
            .await;
        let request = peer.request().await;
        assert_eq!(
            request["params"],
            json!({"index_fingerprint": "a", "provenance_set": ["a", "b"]})
        );
        peer.answer(&request, 1, json!({"table_epoch": 5, "verdict": "valid"}))
            .await;
        let request = peer.request().await;
        assert_eq!(
            request["params"],
            json!({"index_fingerprint": "a", "provenance_set": ["a", "b"]})
        );
        let over = json!({"table_epoch": 6, "verdict": "migration_required", "retracted_pair": ["a", "b"],
            "rebuild_target": "b"});
        peer.answer(&request, 1, over).await;
        let request = peer.request().await;
        peer.answer(&request, 1, json!({"table_epoch": 7, "verdict": "perhaps"}))
            .await;
    };
    let program = async {
        spaces.before_write(&client, "a").await.unwrap();
        spaces.before_write(&client, "b").await.unwrap();
        spaces.save(&file).unwrap();
        let kept = IndexSpaces::load(&file).unwrap();
        assert_eq!(kept, spaces);
        assert_eq!((kept.fingerprint(), kept.table_epoch()), (Some("a"), 5));
        assert_eq!(kept.written().collect::<Vec<_>>(), ["a", "b"]);

        let refused = spaces.before_write(&client, "a").await.unwrap_err();
        assert!(refused.to_string().ends_with("rebuild it for b"), "{refused}");
        let IndexError::MigrationRequired(verdict) = refused else {
            panic!("{refused}")
        };
        assert_eq!(verdict.retracted_pair, Some(["a".to_owned(), "b".to_owned()]));
        let unknown = spaces.before_write(&client, "a").await.unwrap_err();
        assert!(matches!(unknown, IndexError::UnknownVerdict), "{unknown}");
        assert_eq!(spaces, kept, "a refused write changes nothing");
    };
    tokio::join!(script, program);
}

#[test]
fn queries_name_the_space_of_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spaces.json");
    let params = || EmbedQueryParams::new("m", "text");
    assert_eq!(IndexSpaces::default().query(params()).target_fingerprint, None);
    std::fs::write(&file, r#"{"fingerprint": "a", "written": ["a"], "table_epoch": 3}"#).unwrap();
    let spaces = IndexSpaces::load(&file).unwrap();
    assert_eq!(spaces.query(params()).target_fingerprint.as_deref(), Some("a"));
    std::fs::write(&file, r#"{"fingerprint": "a", "vectors": []}"#).unwrap();
    let error = IndexSpaces::load(&file).unwrap_err();
    assert!(error.to_string().contains("spaces.json: unknown field"), "{error}");
}

//! Tests of the envelope: hostile lines, ids, params, stamps, and clients older than the daemon.

use proptest::prelude::*;

use super::*;
use crate::client::{
    Class, EmbedBatchParams, EmbedQueryParams, ErrorCode, ErrorData, HealthParams, RequestCancelResult,
};

fn fault(line: &str) -> (EnvelopeFault, Option<Id>, String) {
    let error = parse_request(line.as_bytes()).unwrap_err();
    (error.fault, error.id, error.message)
}

#[test]
fn params_may_come_before_method() {
    let request =
        parse_request(br#"{"params":{"model":"m","text":"t"},"method":"embed.query","id":"a","jsonrpc":"2.0"}"#)
            .unwrap();
    assert_eq!(request.id, Some(Id::from("a")));
    assert_eq!(request.method, "embed.query");
    let params: EmbedQueryParams = parse_params(request.params.as_deref()).unwrap();
    assert_eq!(params, EmbedQueryParams::new("m", "t"));
}

#[test]
fn ids_are_strings_or_integers_and_absent_means_notification() {
    for (json, id) in [
        ("7", Id::Number(7)),
        ("-1", Id::Number(-1)),
        ("\"7\"", Id::from("7")),
        ("\"\"", Id::from("")),
    ] {
        let request = parse_request(format!(r#"{{"jsonrpc":"2.0","id":{json},"method":"health"}}"#).as_bytes());
        assert_eq!(request.unwrap().id, Some(id));
    }
    assert_eq!(
        parse_request(br#"{"jsonrpc":"2.0","method":"health"}"#).unwrap().id,
        None
    );
    let long = format!("\"{}\"", "x".repeat(MAX_ID_BYTES + 1));
    for json in [
        "null",
        "1.5",
        "true",
        "[1]",
        "{}",
        "18446744073709551615",
        long.as_str(),
    ] {
        let (fault, id, _) = fault(&format!(r#"{{"jsonrpc":"2.0","id":{json},"method":"health"}}"#));
        assert_eq!((fault, id), (EnvelopeFault::Invalid, None), "{json}");
    }
}

/// Proves API-01.
#[test]
fn what_is_no_json_is_told_from_what_is_no_request() {
    use EnvelopeFault::{Invalid, Parse};
    for (line, expected, words) in [
        ("{", Parse, "not JSON"),
        ("hello", Parse, "not JSON"),
        ("\u{feff}{}", Parse, "not JSON"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"health"} x"#, Parse, "trailing"),
        (r#"{"jsonrpc":2,"id":1,"method":"health","#, Parse, "not JSON"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"he\0alth\"}",
            Parse,
            "not JSON",
        ),
        ("[]", Invalid, "arrays of requests"),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"health"}]"#,
            Invalid,
            "arrays of requests",
        ),
        ("1", Invalid, "not a JSON-RPC"),
        ("null", Invalid, "not a JSON-RPC"),
        ("{}", Invalid, "jsonrpc"),
        (r#"{"id":1,"method":"health"}"#, Invalid, "jsonrpc"),
        (r#"{"jsonrpc":"1.0","id":1,"method":"health"}"#, Invalid, "2.0"),
        (r#"{"jsonrpc":"2.0","id":1}"#, Invalid, "method"),
        (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, Invalid, "string"),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"health","extra":1}"#,
            Invalid,
            "extra",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
            Invalid,
            "duplicate field `method`",
        ),
    ] {
        let (fault, _, message) = fault(line);
        assert_eq!(fault, expected, "{line}: {message}");
        assert!(message.contains(words), "{line}: {message}");
    }
    assert_eq!(parse_request(b"\xff").unwrap_err().fault, Parse);
}

#[test]
fn the_id_of_a_broken_request_is_found_where_it_can_be() {
    assert_eq!(
        fault(r#"{"jsonrpc":"2.0","id":41,"method":"health","extra":1}"#).1,
        Some(Id::Number(41))
    );
    assert_eq!(fault(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"health"}"#).1, None);
}

#[test]
fn deep_nesting_is_refused_before_it_is_read() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"health","params":{open}{close}}}"#)
    };
    assert!(parse_request(nested(MAX_DEPTH - 1).as_bytes()).is_ok());
    assert_eq!(fault(&nested(MAX_DEPTH)).0, EnvelopeFault::Invalid);
    assert!(fault(&nested(1_000_000)).2.contains("deeper than 64"));
}

/// Proves API-04.
#[test]
fn params_are_named_and_a_wrong_one_is_named_back() {
    let read = |json: &str| {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        parse_params::<EmbedQueryParams>(Some(&raw)).map_err(|error| error.0)
    };
    let common = [
        r#""deadline_ms":1"#,
        r#""max_queue_ms":1"#,
        r#""fail_if_not_ready":true"#,
        r#""required_fingerprint":"00""#,
        r#""allow_equivalent":true"#,
        r#""required_epoch":0"#,
        r#""require_device":"cpu""#,
    ];
    for field in common {
        assert!(
            read(&format!(r#"{{"model":"m","text":"t",{field}}}"#)).is_ok(),
            "{field}"
        );
        let raw = format!(r#"{{"model":"m","items":[],{field}}}"#);
        let raw: Box<RawValue> = serde_json::from_str(&raw).unwrap();
        assert!(parse_params::<EmbedBatchParams>(Some(&raw)).is_ok(), "{field}");
    }
    for (json, words) in [
        (r#"{"model":"m","text":"t","colour":1}"#, "unknown field `colour`"),
        (r#"{"model":"m","text":"t","text":"u"}"#, "duplicate field `text`"),
        (r#"{"model":"m"}"#, "missing field `text`"),
        (r#"{"model":"m","text":5}"#, "expected a string"),
        (r#"{"model":"m","text":"t","role":"QUERY"}"#, "unknown variant `QUERY`"),
        (r#"{"model":"m","text":"t","dimensions":-1}"#, "-1"),
        (r#"["m","t"]"#, "must be an object"),
        ("null", "must be an object"),
    ] {
        let message = read(json).unwrap_err();
        assert!(message.contains(words), "{json}: {message}");
        assert!(!message.contains("at line"), "{message}");
    }
    assert!(parse_params::<HealthParams>(None).is_ok());
}

/// A text that is no Unicode fails its own item: the line and its other items are read.
#[test]
fn a_lone_surrogate_does_not_fail_the_line() {
    let line = br#"{"jsonrpc":"2.0","id":1,"method":"embed.batch","params":{"model":"m","items":[{"id":"a","text":"\ud800"},{"id":"b","text":"ok"}]}}"#;
    let request = parse_request(line).unwrap();
    let params: EmbedBatchParams = parse_params(request.params.as_deref()).unwrap();
    assert!(params.items[0].text.as_str().is_err());
    assert_eq!(params.items[1].text.as_str(), Ok("ok"));
}

/// Proves API-13, ERR-05.
#[test]
fn every_answer_carries_the_stamp() {
    let stamp = Stamp {
        request_id: "7c-000012".to_owned(),
        module_generation: 9,
    };
    let result = encode_result(&Id::from(1), &stamp, &RequestCancelResult { found: true }).unwrap();
    assert_eq!(
        String::from_utf8(result.clone()).unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"request_id\":\"7c-000012\",\"module_generation\":9,\"found\":true}}\n"
    );
    let response = parse_response(&result).unwrap();
    let stamped = Stamped::<RequestCancelResult>::read(&response.outcome.unwrap()).unwrap();
    assert_eq!((stamped.stamp, stamped.result.found), (stamp, true));

    let error = ErrorObject {
        code: -32_001,
        message: "busy".to_owned(),
        data: ErrorData {
            code: ErrorCode::QueueFull,
            class: Class::Transient,
            retry_after_ms: Some(50),
            safe_to_retry_same_request: true,
            module_generation: 9,
            request_id: "7c-000013".to_owned(),
            detail: None,
        },
    };
    let line = encode_error(None, &error).unwrap();
    assert_eq!(
        String::from_utf8(line.clone()).unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32001,\"message\":\"busy\",\"data\":{\"code\":\"queue_full\",\"class\":\"transient\",\"retry_after_ms\":50,\"safe_to_retry_same_request\":true,\"module_generation\":9,\"request_id\":\"7c-000013\"}}}\n"
    );
    assert_eq!(parse_response(&line).unwrap().outcome.unwrap_err(), error);
}

#[test]
fn clients_ignore_what_a_newer_daemon_adds() {
    let line = br#"{"jsonrpc":"2.0","id":1,"new":1,"result":{"request_id":"a","module_generation":1,"found":false,"more":[1]}}"#;
    let raw = parse_response(line).unwrap().outcome.unwrap();
    assert!(!Stamped::<RequestCancelResult>::read(&raw).unwrap().result.found);
    let line = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"m","data":{"code":"brand_new","class":"permanent","safe_to_retry_same_request":false,"module_generation":1,"request_id":"a","detail":{"unheard":1}}}}"#;
    let error = parse_response(line).unwrap().outcome.unwrap_err();
    assert_eq!(error.data.code, ErrorCode::Other("brand_new".to_owned()));
}

#[test]
fn an_answer_is_a_result_or_an_error() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        r#"{"id":1,"result":1}"#,
        "[]",
        "",
    ] {
        assert!(parse_response(line.as_bytes()).is_err(), "{line}");
    }
}

proptest! {
    /// No bytes make the parser panic, and a request that is read has a method from the line.
    #[test]
    fn hostile_lines_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_request(&bytes);
        let _ = parse_response(&bytes);
    }

    /// One changed byte in a good request never panics.
    #[test]
    fn mutated_requests_are_answered(position in 0_usize..90, byte in any::<u8>()) {
        let mut line = br#"{"jsonrpc":"2.0","id":"abc","method":"embed.query","params":{"model":"m","text":"\ud83d\ude00"}}"#.to_vec();
        line[position] = byte;
        if let Ok(request) = parse_request(&line) {
            let _ = parse_params::<EmbedQueryParams>(request.params.as_deref());
        }
    }
}

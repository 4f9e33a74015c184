//! The way to etcd: what is refused before it is tried, certificates, and users.

use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Client, Permission, PermissionType};
use shard_manager::backend::etcd::{Invalid, Members, Settings};
use shard_manager::config::Secret;
use shard_manager::store::{Error, Store};

use crate::members::{first_state, store};
use crate::rig::{Candidate, settings};
use crate::support::etcd::{Etcd, eventually};

const TIMEOUT: Duration = Duration::from_secs(2);

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls").join(name)
}

#[test]
fn settings_that_can_never_work_are_refused_by_name() {
    let refused = |settings: &Settings| Members::new(settings).unwrap_err();
    for endpoint in ["ftp://a:1", "unix:///a", "a:2379", "http//a:1", "https://a:2379"] {
        let error = refused(&settings(vec!["http://b:1".to_owned(), endpoint.to_owned()], TIMEOUT));
        assert!(matches!(error, Invalid::Endpoint { .. }) && error.to_string().contains(endpoint), "{error}");
    }
    assert!(refused(&settings(vec!["ftp://a:1".to_owned()], TIMEOUT)).to_string().contains("\"ftp\" is neither http nor https"));
    assert!(matches!(refused(&settings(Vec::new(), TIMEOUT)), Invalid::NoEndpoint));
    let mut secure = settings(vec!["https://localhost:1".to_owned()], TIMEOUT);
    secure.ca_file = Some(file("there-is-none.pem"));
    assert!(refused(&secure).to_string().contains("there-is-none.pem"));
    secure.ca_file = Some(file("ca.pem"));
    secure.identity_files = Some((file("client.pem"), file("ca.pem")));
    assert!(matches!(refused(&secure), Invalid::Endpoint { .. }), "a key that is none");
}

#[test]
fn a_password_is_read_from_its_file_and_the_configuration_becomes_settings() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("password");
    std::fs::write(&path, "hunter2 \r\n").unwrap();
    let sets = |more: &[&str]| {
        let mut sets = vec!["persistence.type=etcd".to_owned(), "persistence.etcd.endpoints=http://a:1".to_owned()];
        sets.extend(more.iter().map(|set| format!("persistence.etcd.{set}")));
        let sources = shard_manager::config::Sources { sets, ..Default::default() };
        shard_manager::config::Config::load(&sources).unwrap().0.persistence.etcd
    };
    let file = format!("password_file={}", path.display());
    let read =
        Settings::from_config(&sets(&["username=me", &file, "cert_file=/c", "key_file=/k", "ca_file=/a"]), TIMEOUT).unwrap();
    assert_eq!(read.credentials, Some(("me".to_owned(), Secret::new("hunter2 "))));
    assert_eq!((read.identity_files, read.ca_file), (Some(("/c".into(), "/k".into())), Some("/a".into())));
    assert_eq!((read.endpoints, read.request_timeout), (vec!["http://a:1".to_owned()], TIMEOUT));
    let read = Settings::from_config(&sets(&["username=me", "password=hunter2"]), TIMEOUT).unwrap();
    assert_eq!(read.credentials, Some(("me".to_owned(), Secret::new("hunter2"))));
    assert_eq!(Settings::from_config(&sets(&[]), TIMEOUT).unwrap().credentials, None);
    let refused = Settings::from_config(&sets(&["username=me", "password_file=/no/such/file"]), TIMEOUT).unwrap_err();
    assert!(matches!(refused, Invalid::File { .. }) && refused.to_string().contains("/no/such/file"), "{refused}");
}

fn over_tls(etcd: &Etcd) -> Settings {
    let port = etcd.members[0].client.port();
    let mut settings = settings(vec![format!("https://localhost:{port}")], TIMEOUT);
    settings.ca_file = Some(file("ca.pem"));
    settings.identity_files = Some((file("client.pem"), file("client.key")));
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_demands_certificates_gets_them() {
    let path = |name| file(name).display().to_string();
    let options = [
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={}", path("ca.pem")),
        format!("--cert-file={}", path("server.pem")),
        format!("--key-file={}", path("server.key")),
    ];
    let etcd = Etcd::start(1, "https", &options).await;
    let settings = over_tls(&etcd);
    let leader = Candidate::with("first", &settings, 4).wins().await;
    let state = first_state(leader.fence());
    store(&settings).commit(leader.fence(), None, &state.changes_since(None)).await.unwrap();
    assert_eq!(store(&settings).load().await.unwrap().unwrap().state, state);

    // Without a certificate, and with one whose issuer is not trusted, there is no way in.
    let mut without = over_tls(&etcd);
    without.identity_files = None;
    let mut stranger = over_tls(&etcd);
    stranger.ca_file = Some(file("stranger.pem"));
    let plain = self::settings(vec![format!("http://localhost:{}", etcd.members[0].client.port())], TIMEOUT);
    for settings in [without, stranger, plain] {
        let outcome = store(&settings).load().await;
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    }
}

/// Makes a root user and one that may use `/test/` only, and turns authentication on.
async fn demand_users(client: &mut Client) {
    client.user_add("root", "root", None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("tests").await.unwrap();
    let all = Permission::new(PermissionType::Readwrite, "/test/").with_prefix();
    client.role_grant_permission("tests", all).await.unwrap();
    client.user_add("somebody", "hunter2", None).await.unwrap();
    client.user_grant_role("somebody", "tests").await.unwrap();
    client.auth_enable().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_demands_a_user_gets_one_also_after_it_restarted() {
    let mut etcd = Etcd::single().await;
    demand_users(&mut etcd.client().await).await;
    let mut known = settings(etcd.endpoints(), TIMEOUT);
    known.credentials = Some(("somebody".to_owned(), Secret::new("hunter2")));
    assert!(!format!("{known:?}").contains("hunter2"));
    let mut leader = Candidate::with("first", &known, 8).wins().await;
    let store = store(&known);
    let mut state = first_state(leader.fence());
    let mut revision = store.commit(leader.fence(), None, &state.changes_since(None)).await.unwrap();

    // etcd forgets the tokens that it gave.
    etcd.members[0].kill();
    etcd.run(0);
    state.meta.attempt += 1;
    let changes = state.changes_since(None);
    revision = eventually("a commit", async || store.commit(leader.fence(), Some(revision), &changes).await.ok()).await;
    assert_eq!(store.load().await.unwrap().unwrap().revision, revision);
    if let Ok(lost) = tokio::time::timeout(Duration::from_secs(9), leader.lost()).await {
        panic!("{lost}");
    }

    let mut wrong = known.clone();
    wrong.credentials = Some(("somebody".to_owned(), Secret::new("hunter3")));
    for settings in [wrong, settings(etcd.endpoints(), TIMEOUT)] {
        let outcome = crate::members::store(&settings).load().await;
        let Err(error @ Error::Unavailable { .. }) = outcome else { panic!("{outcome:?}") };
        assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
    }
}

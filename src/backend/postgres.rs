//! One schema in one PostgreSQL database: how it is reached, what every session there is set to, and its tables.
//!
//! Nothing is pooled. Each user has a connection of its own, so that no commit can starve a renewal, and one that a request failed on is
//! thrown away: the server undoes what was not committed, at the latest when its own time-outs end it. These are set for every
//! session, all within the request time-out, so that a process that was stopped in the middle of something holds up nobody for longer.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError, PgSeverity, PgSslMode};
use sqlx::{ConnectOptions, Row};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::backend::Error;
use crate::backend::settings::{self, Invalid};
use crate::config::keys::{SCHEMA, is_schema};
use crate::config::{self, Secret};

mod schema;

/// Older ones lack what we need: `tcp_user_timeout`, by which a server notices in time that a client is gone, and CTEs that are
/// evaluated by themselves (`MATERIALIZED`).
const LEAST_VERSION: i32 = 120_000;

/// What a URL may say besides the place, the user and the password. A mistyped name would be ignored, and logged with its value.
const PARAMETERS: [&str; 9] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "host", "hostaddr", "port", "user", "dbname"];

/// What `sslmode` may say. Checked here, since sqlx repeats what it refuses.
const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// How many times as long as one request making the tables may take: a dozen round trips, most of them short.
const MAKING: u32 = 10;

/// What was being done, as errors say it.
const CONNECTING: &str = "connecting to the database";

/// How a database is reached.
#[derive(Clone)]
pub struct Settings {
    /// As messages show it.
    url: Secret,
    options: PgConnectOptions,
    schema: String,
    request_timeout: Duration,
}

impl Settings {
    /// The settings that the keys below `persistence.postgres` ask for. Reads the password's file; certificates and keys are read with
    /// each connection, so that they can be renewed under a running process. Connects to nothing.
    ///
    /// With `ca_file` the connection is encrypted, and the server must prove by a certificate that it is the host in the URL; one
    /// that a public authority signed is taken too. Without it the URL's `sslmode` decides. `request_timeout` bounds one request;
    /// above zero. What the URL leaves open comes from libpq's environment variables and password file.
    ///
    /// # Errors
    /// Where the URL is missing, is none, or says something unknown; where a file is unreadable or one half of a pair is missing;
    /// where the schema's name needs quotes.
    pub fn from_config(postgres: &config::Postgres, request_timeout: Duration) -> Result<Settings, Invalid> {
        let url = postgres.url.clone().ok_or(Invalid::Missing { key: "persistence.postgres.url" })?;
        let mut options = parse(&url)?;
        if !is_schema(&postgres.schema) {
            let (name, value) = ("persistence.postgres.schema", format!("{:?}", postgres.schema));
            return Err(Invalid::Value { name, value, rule: SCHEMA.to_owned() });
        }
        settings::check_request_timeout(request_timeout)?;
        let given = ("persistence.postgres.password", &postgres.password);
        if let Some((_, password)) = settings::password(given, ("persistence.postgres.password_file", &postgres.password_file))? {
            options = options.password(password.reveal());
        }
        if let Some(ca_file) = &postgres.ca_file {
            readable("persistence.postgres.ca_file", ca_file)?;
            options = options.ssl_root_cert(ca_file).ssl_mode(PgSslMode::VerifyFull);
        }
        let (certificate, key) = ("persistence.postgres.cert_file", "persistence.postgres.key_file");
        if let Some(files) = settings::pair((certificate, &postgres.cert_file), (key, &postgres.key_file))? {
            readable(certificate, &files.0)?;
            readable(key, &files.1)?;
            options = options.ssl_client_cert(files.0).ssl_client_key(files.1);
        }
        let options = options.options(session(&postgres.schema, request_timeout)).statement_cache_capacity(32);
        let options = options.disable_statement_logging();
        Ok(Settings { url, options, schema: postgres.schema.clone(), request_timeout })
    }
}

impl fmt::Debug for Settings {
    /// Not the options, which would show the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { url, schema, request_timeout, options: _ } = self;
        let mut shown = f.debug_struct("Settings");
        shown.field("url", url).field("schema", schema).field("request_timeout", request_timeout).finish_non_exhaustive()
    }
}

/// Whether a URL can be read. It connects to nothing, and reads no file.
///
/// # Errors
/// Where it is no URL, or says something unknown.
pub fn check_url(url: &Secret) -> Result<(), Invalid> {
    parse(url).map(drop)
}

fn parse(url: &Secret) -> Result<PgConnectOptions, Invalid> {
    let refused = |reason: String| Invalid::Url { url: url.clone(), reason };
    let text = url.reveal();
    if !["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
        return Err(refused("it takes a URL that begins with postgres:// or postgresql://".to_owned()));
    }
    let parameters = text.split_once('?').map_or("", |(_, parameters)| parameters);
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
        if !PARAMETERS.contains(&name) {
            // Not the name itself, which may be half of a password that should have been escaped.
            return Err(refused(format!("of parameters it takes {}", PARAMETERS.join(", "))));
        }
        if parameter.strip_prefix("sslmode=").is_some_and(|mode| !SSL_MODES.contains(&mode)) {
            return Err(refused(format!("of sslmode it takes {}", SSL_MODES.join(", "))));
        }
    }
    text.parse().map_err(|error: sqlx::Error| match error {
        sqlx::Error::Configuration(reason) => refused(reason.to_string()),
        error => refused(error.to_string()),
    })
}

fn readable(key: &'static str, path: &PathBuf) -> Result<(), Invalid> {
    std::fs::read(path).map(drop).map_err(|source| Invalid::File { key, path: path.clone(), source })
}

/// What every session is set to as it begins, whatever the database, the role or the environment say.
///
/// A lock is waited for half of a request's time and a statement may take three quarters: its failure is then known before the request's
/// time is over. Whoever is idle in a transaction is no request of ours that still goes on.
fn session(schema: &str, request_timeout: Duration) -> [(&'static str, String); 10] {
    let ms = |duration: Duration| duration.as_millis().clamp(1, i32::MAX as u128).to_string();
    let seconds = request_timeout.as_secs().clamp(1, 3600).to_string();
    [
        ("search_path", schema.to_owned()),
        // What the store and the election lean on; see there.
        ("default_transaction_isolation", "read committed".to_owned()),
        ("lock_timeout", ms(request_timeout / 2)),
        ("statement_timeout", ms(request_timeout / 4 * 3)),
        ("idle_in_transaction_session_timeout", ms(request_timeout)),
        // The server's side of the connection: locks of a client whose machine is gone.
        ("tcp_keepalives_idle", seconds.clone()),
        ("tcp_keepalives_interval", seconds),
        ("tcp_keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", ms(request_timeout)),
        ("client_min_messages", "warning".to_owned()),
    ]
}

/// One schema in one database. Holds no connection itself.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    /// Whether the tables were brought up to date by this process.
    prepared: OnceCell<()>,
}

impl Server {
    /// The server that `settings` name. Connects to nothing yet, so that a server may come later than this process.
    pub fn new(settings: Settings) -> Arc<Server> {
        Arc::new(Server { settings, prepared: OnceCell::new() })
    }

    /// What bounds one request.
    pub fn request_timeout(&self) -> Duration {
        self.settings.request_timeout
    }

    /// The schema that holds the tables: a name that needs no quotes unless it is a word of SQL.
    pub fn schema(&self) -> &str {
        &self.settings.schema
    }

    /// Creates the schema where it is missing, brings its tables up to date, and looks whether they are what this version makes. Once
    /// that succeeded, it does nothing more. Any number of processes may do it at once: one works, the others wait for it.
    ///
    /// Where all is there, that takes one connection and two round trips, each bounded by the request time-out; making it takes more of
    /// them, and ten times as long at most. An existing schema needs no right to create one, but the right to create tables in it, unless
    /// they are there.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the server was not reached, is a standby, or did not let us; [`Error::Corrupt`] where the tables
    /// are of a newer version, or not as this version makes them: they are left as they are.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.prepared.get_or_try_init(|| self.make()).await.copied()
    }

    async fn make(&self) -> Result<(), Error> {
        let mut connection = self.bounded(CONNECTING, self.session("preparing")).await?;
        match self.check(&mut connection).await {
            Err(Error::Corrupt { .. }) => {}
            checked => return checked,
        }
        // Under its lock, and what it refuses is refused there.
        let within = self.settings.request_timeout * MAKING;
        let late = |_| {
            let why = format!("not done within {within:?}, {MAKING} times persistence.request_timeout");
            Err(self.unavailable(schema::PREPARING, why))
        };
        timeout(within, schema::prepare(self, &mut connection)).await.unwrap_or_else(late)
    }

    /// Looks whether the tables are what this version makes, now: a newer one may have come since [`Server::prepare`]. Makes nothing.
    ///
    /// Bounded by the request time-out.
    ///
    /// # Errors
    /// As [`Server::prepare`].
    pub(crate) async fn check(&self, connection: &mut PgConnection) -> Result<(), Error> {
        self.bounded(schema::LOOKING, schema::check(self, connection)).await
    }

    /// A new connection, for one user, to a schema that was prepared by then. `purpose` is what it is for, as the server's own lists
    /// (`pg_stat_activity`) show it: at most 40 ASCII characters.
    ///
    /// Bounded by the request time-out, once it was prepared.
    ///
    /// # Errors
    /// As [`Server::prepare`].
    pub async fn connect(&self, purpose: &str) -> Result<PgConnection, Error> {
        self.prepare().await?;
        self.bounded(CONNECTING, self.session(purpose)).await
    }

    /// What a connection of ours is made with, for those who have to make it elsewhere; what else [`Server::connect`] sees to is theirs.
    pub(crate) fn options(&self, purpose: &str) -> PgConnectOptions {
        self.settings.options.clone().application_name(&application_name(purpose))
    }

    /// What an error says of a request that changed nothing: [`Error::Corrupt`] where it comes from what is stored, so that trying again
    /// does not help.
    pub(crate) fn failure(&self, what: &'static str, error: sqlx::Error) -> Error {
        if speaks_of_content(&error) {
            return self.corrupt(format!("{what}: {}", said(&error)));
        }
        self.unavailable(what, said(&error))
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { record: format!("the schema {} of {}", self.settings.schema, self.settings.url), reason }
    }

    fn unavailable(&self, what: &'static str, why: impl fmt::Display) -> Error {
        Error::Unavailable { what, source: format!("{}: {why}", self.settings.url).into() }
    }

    async fn bounded<T>(&self, what: &'static str, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let within = self.settings.request_timeout;
        let late = |_| Err(self.unavailable(what, format!("no answer within {within:?} (persistence.request_timeout)")));
        timeout(within, request).await.unwrap_or_else(late)
    }

    /// A new connection to a server that is fit for us. Whatever is wrong here says nothing of what is stored.
    async fn session(&self, purpose: &str) -> Result<PgConnection, Error> {
        let refused = |error| self.unavailable(CONNECTING, said(&error));
        let mut connection = self.options(purpose).connect().await.map_err(refused)?;
        // One round trip. What is durable with us must be on disk, and where the server is set to more than that, there too.
        let look = "SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS standby, \
             current_setting('transaction_read_only')::bool AS read_only, current_setting('search_path') AS search_path, \
             CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') \
             THEN set_config('synchronous_commit', 'on', false) END AS raised";
        let row = sqlx::raw_sql(look).fetch_one(&mut connection).await.map_err(refused)?;
        let version: i32 = row.try_get("version").map_err(refused)?;
        if version < LEAST_VERSION {
            let (has, least) = (version / 10_000, LEAST_VERSION / 10_000);
            return Err(self.unavailable(CONNECTING, format!("its version is {has}, it takes {least} or newer")));
        }
        if row.try_get("standby").map_err(refused)? {
            return Err(self.unavailable(CONNECTING, "it is a standby, it takes the primary"));
        }
        if row.try_get("read_only").map_err(refused)? {
            return Err(self.unavailable(CONNECTING, "its transactions are read-only (default_transaction_read_only)"));
        }
        let search_path: String = row.try_get("search_path").map_err(refused)?;
        if search_path != self.settings.schema {
            let why = format!("search_path is {search_path:?}, not what was asked for; does a pooler stand between?");
            return Err(self.unavailable(CONNECTING, why));
        }
        Ok(connection)
    }
}

/// What a session of ours is called in the server's own lists; see [`Server::connect`].
pub(crate) fn application_name(purpose: &str) -> String {
    format!("shard-manager {purpose}")
}

/// Whether an error proves that the statement it answers changed nothing, now and later.
///
/// An ERROR aborts the transaction, and the server raises none once it is committed. But what stands between us and the server may put
/// one in the place of an answer that it did not get: of a connection (class 08), of a server that ends (57P0x), or of an outcome that is
/// not known (40003). A FATAL one ends the session, perhaps between the commit and its answer (a shutdown while it waits for a
/// synchronous standby); and a connection that broke says nothing.
pub(crate) fn is_certain(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let error = error.try_downcast_ref::<PgDatabaseError>();
            error.is_some_and(|error| matches!(error.severity(), PgSeverity::Error) && speaks_of_the_statement(error.code()))
        }
        // Not sent.
        sqlx::Error::Encode(_) => true,
        _ => false,
    }
}

fn speaks_of_the_statement(code: &str) -> bool {
    !(code.starts_with("08") || code.starts_with("57P0") || code == "40003")
}

/// Whether an error comes from what is stored, so that trying again does not help.
fn speaks_of_content(error: &sqlx::Error) -> bool {
    let Some(code) = code(error) else {
        return matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound);
    };
    match code {
        // Not allowed, and what a pooler makes of prepared statements.
        "42501" | "42P05" => false,
        // Damaged data, a damaged index.
        "XX001" | "XX002" => true,
        // Bad values, broken rules, and statements that do not fit the tables.
        _ => ["22", "23", "42"].contains(&code.get(..2).unwrap_or(code)),
    }
}

/// The SQLSTATE, where the server spoke.
fn code(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error()?.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::code)
}

/// As messages show it: with the SQLSTATE, by which it can be looked up.
pub(crate) fn said(error: &sqlx::Error) -> String {
    match (error, code(error)) {
        (sqlx::Error::Database(database), Some(code)) => format!("{} (SQLSTATE {code})", database.message()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is no second name for this machine that a test could rely on, so that the name is checked is looked at here.
    #[test]
    fn an_authority_makes_the_servers_name_count_whatever_the_url_says() {
        for url in ["postgres://db/x", "postgres://db/x?sslmode=disable", "postgres://db/x?sslmode=verify-ca"] {
            let ca_file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls/ca.pem");
            let (password, password_file, cert_file, key_file) = (None, None, None, None);
            let (url, schema) = (Some(Secret::new(url)), "shards".to_owned());
            let config = config::Postgres { url, schema, password, password_file, ca_file: Some(ca_file), cert_file, key_file };
            let settings = Settings::from_config(&config, Duration::from_secs(1)).expect("settings");
            assert!(matches!(settings.options.get_ssl_mode(), PgSslMode::VerifyFull));
        }
    }
}

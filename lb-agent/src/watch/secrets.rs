//! Removes secrets from errors and addresses before they become text: arguments, environment and output of a credential
//! plugin, the content of a kubeconfig, and user names with passwords.

use std::error::Error;
use std::iter::successors;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use kube::client::AuthError;
use kube::config::AuthInfo;
use tower::BoxError;

/// Returns the program that makes the credentials; empty if none does.
pub(super) fn program(credentials: &AuthInfo) -> &str {
    let plugin = credentials.exec.as_ref().and_then(|exec| exec.command.as_deref());
    let provider = credentials.auth_provider.as_ref();
    let command = provider.and_then(|provider| provider.config.get("cmd-path"));
    plugin.or_else(|| command.map(String::as_str)).unwrap_or_default()
}

/// Returns the error without secrets if it is one of credentials, which `program` makes. Others stay as they are.
pub(super) fn without_secrets(error: BoxError, program: &str) -> BoxError {
    let first: &(dyn Error + 'static) = error.as_ref();
    let mut causes = successors(Some(first), |error| (*error).source());
    let found = causes.find_map(|cause| cause.downcast_ref::<AuthError>());
    match found.and_then(|found| words(found, program)) {
        Some(words) => words.into(),
        None => error,
    }
}

/// Returns the text for an error whose own text may contain secrets. The words for a failed program are client-go's.
fn words(error: &AuthError, program: &str) -> Option<String> {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            Some(format!("exec: executable {program} failed with {}", end(out.status)))
        }
        AuthError::AuthExecStart(error) => Some(format!("exec: executable {program}: {error}")),
        AuthError::AuthExecParse(error) => {
            let place = place(error);
            Some(format!("exec: executable {program} printed no valid ExecCredential{place}"))
        }
        AuthError::MalformedTokenExpirationDate(_) => {
            Some(format!("exec: executable {program}: the expiration time is not in RFC 3339"))
        }
        // The library's own words, names and paths.
        AuthError::InvalidBasicAuth(_)
        | AuthError::InvalidBearerToken(_)
        | AuthError::UnrefreshableTokenResponse
        | AuthError::ExecPluginFailed
        | AuthError::AuthExecSerialize(_)
        | AuthError::AuthExec(_)
        | AuthError::ReadTokenFile(..)
        | AuthError::ParseTokenKey(_)
        | AuthError::MissingCommand
        | AuthError::ExecMissingClusterInfo
        | AuthError::NoValidNativeRootCA(_) => None,
    }
}

fn end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Returns the place of a YAML error; empty if it is unknown. Its text quotes the lines around it.
pub(super) fn place(error: &serde_saphyr::Error) -> String {
    error.location().map_or_else(String::new, |place| {
        format!(" (line {}, column {})", place.line(), place.column())
    })
}

/// Returns an address without user name and password. It need not be valid.
pub(super) fn without_user(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}{separator}{host}")
}

#[cfg(test)]
mod tests {
    use std::process::Output;

    use super::*;

    fn run(status: i32) -> BoxError {
        let out = Output {
            status: ExitStatus::from_raw(status),
            stdout: b"SECRET".to_vec(),
            stderr: b"SECRET".to_vec(),
        };
        let cmd = "PASSWORD=\"SECRET\" \"plugin\" \"--key=SECRET\"".to_owned();
        kube::Error::Auth(AuthError::AuthExecRun { cmd, out: Box::new(out) }).into()
    }

    #[test]
    fn failed_plugin_is_named_without_its_environment_arguments_and_output() {
        let text = |error| crate::chain(without_secrets(error, "/bin/plugin").as_ref());
        assert_eq!(text(run(3 << 8)), "exec: executable /bin/plugin failed with exit code 3");
        assert_eq!(text(run(9)), "exec: executable /bin/plugin failed with signal 9");
        let parsed = serde_saphyr::from_str::<Vec<u8>>("token: SECRET").expect_err("no list");
        let parsed = AuthError::AuthExecParse(Box::new(parsed));
        let expected = "exec: executable /bin/plugin printed no valid ExecCredential (line 1, ";
        let found = text(parsed.into());
        assert!(found.starts_with(expected) && !found.contains("SECRET"), "{found}");
        let time = "SECRET".parse::<jiff::Timestamp>().expect_err("no time");
        let found = text(AuthError::MalformedTokenExpirationDate(time).into());
        assert!(!found.contains("SECRET"), "{found}");
        assert_eq!(text("another error".into()), "another error");
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let found = text(AuthError::AuthExecStart(missing).into());
        assert_eq!(found, "exec: executable /bin/plugin: entity not found");
    }

    #[test]
    fn addresses_are_shown_without_user_and_password() {
        for (address, expected) in [
            ("http://user:word@proxy:3128/", "http://proxy:3128/"),
            ("user:wo/rd@proxy:3128", "proxy:3128"),
            ("gopher://a:b@c@proxy", "gopher://proxy"),
            ("https://10.0.0.1:6443", "https://10.0.0.1:6443"),
        ] {
            assert_eq!(without_user(address), expected);
        }
    }
}

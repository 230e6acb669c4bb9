//! Builds clients, and sends requests with a credential plugin, which may hang: the number of its calls that wait is
//! limited.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use kube::client::Body;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt as _, service_fn};

use super::access::Access;
use super::connector::{Stack, stack};
use super::server::{ClientError, Server};
use super::source_address::AddressUpdates;

/// Time limit for building a client, which includes the call of a credential plugin.
const PLUGIN: Duration = Duration::from_secs(30);
/// Largest number of builds, and of built clients that may call their plugin, at the same time. A plugin that hangs
/// keeps its thread, and the threads are those of all work that blocks.
const CALLS: usize = 4;
/// Largest number of requests of a client with a plugin that have no response yet. All parts of the agent together send
/// fewer, so more of them mean that earlier ones wait for the plugin, although their callers gave up.
const REQUESTS: usize = 16;

/// Builds clients, each in a thread of its own, as a credential plugin may block.
pub(super) struct Builds {
    free: Arc<Semaphore>,
    within: Duration,
}

impl Default for Builds {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(CALLS)), within: PLUGIN }
    }
}

impl Builds {
    pub(super) async fn made(
        &self,
        server: &Server,
        access: Access,
        addresses: &AddressUpdates,
    ) -> Result<Stack, ClientError> {
        let (addresses, free) = (addresses.clone(), Arc::clone(&self.free));
        let has_plugin = access.has_plugin;
        let built = async {
            let permit = free.acquire_owned().await;
            // The permit belongs to the thread, which goes on when the time is over.
            spawn_blocking(move || (stack(&access, addresses), permit)).await
        };
        let built = timeout(self.within, built).await;
        let (built, permit) = built.map_err(|_elapsed| ClientError::Slow(self.within))??;
        let stack = built.map_err(|source| match &server.kubeconfig {
            Some(file) => ClientError::Unusable { file: file.clone(), source },
            None => ClientError::ServiceAccount(source),
        })?;
        Ok(if has_plugin { in_tasks(stack, permit) } else { stack })
    }
}

/// Sends each request in a task of its own, which goes on when the caller gives up.
///
/// A request whose token has expired calls the plugin, and the others wait for a lock. If the request ended with its
/// caller, the lock would be free while the plugin goes on, and the next request would call it once more. `permit`: the
/// one of the build, which the client keeps: while its plugin hangs, fewer others are built.
fn in_tasks(stack: Stack, permit: impl Send + Sync + 'static) -> Stack {
    let (free, permit) = (Arc::new(Semaphore::new(REQUESTS)), Arc::new(permit));
    BoxCloneSyncService::new(service_fn(move |req: Request<Body>| {
        let (stack, permit) = (stack.clone(), Arc::clone(&permit));
        // No request waits for a place: behind a plugin that hangs the queue would only grow.
        let sent = Arc::clone(&free).try_acquire_owned().map(|place| {
            tokio::spawn(async move {
                let answer = stack.oneshot(req).await;
                // The place becomes free when the plugin has answered, whether or not the caller still waits.
                drop((place, permit));
                answer
            })
        });
        async move {
            match sent {
                Ok(task) => task.await.unwrap_or_else(|error| Err(error.into())),
                Err(_) => Err(ClientError::Hangs.into()),
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use futures::FutureExt as _;
    use tokio::time::sleep;

    use super::*;

    const ANSWER: &str = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;

    /// Makes a credential plugin that writes its calls to the file `calls`, and hangs while the file `hang` exists. Its
    /// token has expired, so that each request calls it.
    fn plugin(directory: &Path) -> Server {
        let [plugin, file] = ["plugin", "kubeconfig"].map(|name| directory.join(name));
        let at = directory.display();
        // It hangs until the test ends, since the runtime waits for its thread.
        let script = format!(
            "#!/bin/sh\necho call >>{at}/calls\nwhile test -e {at}/hang; do sleep 0.1; done\n\
             echo '{ANSWER}'\n"
        );
        fs::write(&plugin, script).expect("a plugin");
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("permissions");
        let text = format!(
            "
clusters: [{{ name: c, cluster: {{ server: 'http://127.0.0.1:1' }} }}]
users: [{{ name: u, user: {{ exec: {{ apiVersion: client.authentication.k8s.io/v1, command: '{}', interactiveMode: Never }} }} }}]
contexts: [{{ name: x, context: {{ cluster: c, user: u }} }}]
current-context: x
",
            plugin.display()
        );
        fs::write(&file, text).expect("a kubeconfig");
        Server { kubeconfig: Some(file), master: None }
    }

    fn calls(directory: &Path) -> usize {
        fs::read_to_string(directory.join("calls")).expect("calls").lines().count()
    }

    #[tokio::test]
    async fn credential_plugin_that_hangs_costs_a_bounded_time_and_few_threads() {
        let directory = tempfile::tempdir().expect("a directory");
        let server = plugin(directory.path());
        fs::write(directory.path().join("hang"), "").expect("a file");
        let builds = Builds { free: Arc::new(Semaphore::new(1)), within: Duration::from_secs(2) };
        for _ in 0..2 {
            let access = server.access().await.expect("access");
            let made = builds.made(&server, access, &None);
            let made = timeout(Duration::from_mins(1), made).await.expect("an end");
            assert!(matches!(made, Err(ClientError::Slow(_))), "{:?}", made.err());
        }
        assert_eq!(calls(directory.path()), 1, "one at a time");
    }

    #[tokio::test]
    async fn requests_whose_callers_give_up_call_a_plugin_that_hangs_once_and_are_limited() {
        let directory = tempfile::tempdir().expect("a directory");
        let (server, builds) = (plugin(directory.path()), Builds::default());
        let access = server.access().await.expect("access");
        let stack = builds.made(&server, access, &None).await.expect("a client");
        let before = calls(directory.path());
        fs::write(directory.path().join("hang"), "").expect("a file");
        let send = || {
            let request = Request::get("/").body(Body::empty()).expect("a request");
            stack.clone().oneshot(request)
        };
        for _ in 0..REQUESTS {
            assert!(send().now_or_never().is_none(), "it waits for the plugin");
        }
        let refused = send().await.expect_err("too many");
        assert!(refused.is::<ClientError>(), "{refused}");
        let called = async {
            while calls(directory.path()) == before {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_mins(1), called).await.expect("a call");
        assert_eq!(calls(directory.path()), before + 1);
        drop(stack);
        assert_eq!(builds.free.available_permits(), CALLS - 1, "the plugin still hangs");
    }
}

//! Connections of load balancers that are being answered. Their number is bounded, and whoever is new pushes out who
//! has been there longest: clients that say nothing keep no probe from its answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;

use super::answer::Answerer;

/// Connections of all Services at a time.
pub(super) const CONNECTIONS: usize = 1_024;
/// Connections of one Service at a time: a client that is slow on purpose pushes out its own first.
pub(super) const PER_SERVICE: usize = 32;

/// Those that have not ended, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<VecDeque<Connection>>);

#[derive(Debug)]
struct Connection {
    of: Arc<Answerer>,
    task: AbortHandle,
}

impl Connections {
    /// Lets a connection to a Service in, and ends an older one where that is one too many.
    pub(super) fn admit(&self, of: Arc<Answerer>, task: AbortHandle) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|connection| !connection.task.is_finished());
        let is_own = |connection: &Connection| Arc::ptr_eq(&connection.of, &of);
        let oldest = if all.iter().filter(|connection| is_own(connection)).count() >= PER_SERVICE {
            all.iter().position(is_own)
        } else {
            (all.len() >= CONNECTIONS).then_some(0)
        };
        if let Some(oldest) = oldest.and_then(|at| all.remove(at)) {
            oldest.task.abort();
        }
        all.push_back(Connection { of, task });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::health_check::answer::Endpoints;
    use crate::plan::ServiceName;

    fn service() -> Arc<Answerer> {
        Arc::new(Answerer {
            service: ServiceName { namespace: "shop".into(), name: "web".into() },
            endpoints: Endpoints::default(),
            is_healthy: Arc::new(AtomicBool::new(true)),
        })
    }

    /// A connection that never ends by itself.
    fn idle(connections: &Connections, of: &Arc<Answerer>) -> JoinHandle<()> {
        let task = tokio::spawn(std::future::pending());
        connections.admit(Arc::clone(of), task.abort_handle());
        task
    }

    async fn is_pushed_out(task: JoinHandle<()>) -> bool {
        let ended = timeout(Duration::from_mins(1), task).await;
        ended.is_ok_and(|ended| ended.is_err_and(|error| error.is_cancelled()))
    }

    #[tokio::test]
    async fn who_is_new_pushes_out_the_oldest_of_its_own_service_first() {
        let (connections, web, other) = (Connections::default(), service(), service());
        let of_other = idle(&connections, &other);
        let mut all: Vec<_> = (0..PER_SERVICE).map(|_| idle(&connections, &web)).collect();
        let newest = idle(&connections, &web);
        assert!(is_pushed_out(all.remove(0)).await);
        assert!(all.iter().chain([&newest, &of_other]).all(|task| !task.is_finished()));
    }

    #[tokio::test]
    async fn who_is_new_pushes_out_the_oldest_of_all_where_all_places_are_taken() {
        let connections = Connections::default();
        let many: Vec<_> = (0..CONNECTIONS / PER_SERVICE).map(|_| service()).collect();
        let mut all = Vec::new();
        for of in &many {
            all.extend((0..PER_SERVICE).map(|_| idle(&connections, of)));
        }
        let newest = idle(&connections, &service());
        assert!(is_pushed_out(all.remove(0)).await);
        assert!(all.iter().chain([&newest]).all(|task| !task.is_finished()));
    }

    #[tokio::test]
    async fn who_has_ended_takes_no_place() {
        let (connections, web) = (Connections::default(), service());
        let first = idle(&connections, &web);
        for _ in 0..2 * PER_SERVICE {
            let task = tokio::spawn(std::future::ready(()));
            let handle = task.abort_handle();
            task.await.unwrap();
            connections.admit(Arc::clone(&web), handle);
        }
        assert!(!first.is_finished());
        assert_eq!(connections.0.lock().unwrap().len(), 2, "the idle one, and the last");
    }
}

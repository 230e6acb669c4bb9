//! HTTP listeners. A port that is taken is no reason to serve no packets: it is tried again.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tracing::{info, warn};

/// kube-proxy's pause between attempts.
const PAUSE: Duration = Duration::from_secs(5);

/// Serves paths in a task of its own.
pub(super) fn start(address: SocketAddr, what: &'static str, router: Router) {
    drop(tokio::spawn(serve(address, what, router)));
}

async fn serve(address: SocketAddr, what: &'static str, router: Router) {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, what, "listening");
                if let Err(error) = axum::serve(listener, router.clone()).await {
                    warn!(%address, what, %error, "server ended; starting it again");
                }
            }
            Err(error) => warn!(%address, what, %error, "cannot listen; trying again"),
        }
        sleep(PAUSE).await;
    }
}

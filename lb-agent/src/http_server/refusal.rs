//! Requests that Go's server answers before any handler sees them: invalid ones, and `OPTIONS *`.

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};

/// Characters of a host besides letters and digits, from Go's `httpguts.ValidHostHeader`.
const OF_HOSTS: &[u8] = b"!$%&()*+,-.:;=[']_~";

/// Returns the answer to a request that no handler may see.
pub(super) fn of<B>(request: &Request<B>) -> Option<Response<Body>> {
    let (method, uri) = (request.method(), request.uri());
    // Go's server answers this request before any handler sees it (`globalOptionsHandler` in net/http).
    if *method == Method::OPTIONS && uri.path() == "*" {
        return Some(Response::new(Body::empty()));
    }
    let fault = host(request.version(), request.headers());
    fault.or_else(|| target(method, uri)).map(bad_request)
}

/// Returns the fault of the Host header: RFC 9112 3.2 refuses none, two, and an invalid one.
fn host(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || OF_HOSTS.contains(byte);
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0 does not require a Host header.
        (None, _) if version == Version::HTTP_11 => {
            Some("400 Bad Request: missing required Host header")
        }
        (Some(_), Some(_)) => Some("400 Bad Request"),
        (Some(host), None) if !host.as_bytes().iter().all(is_part) => {
            Some("400 Bad Request: malformed Host header")
        }
        (Some(_) | None, _) => None,
    }
}

/// Returns the fault of a request target: it must be a path with complete percent escapes.
fn target(method: &Method, uri: &Uri) -> Option<&'static str> {
    let path = uri.path();
    // CONNECT has a host and port as its target.
    let is_path = path.starts_with('/') || *method == Method::CONNECT;
    let mut escapes = path.split('%').skip(1);
    let is_whole = |escape: &str| {
        escape.as_bytes().first_chunk::<2>().is_some_and(|it| it.iter().all(u8::is_ascii_hexdigit))
    };
    (!is_path || !escapes.all(is_whole)).then_some("400 Bad Request")
}

fn bad_request(text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().extend([
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        // After a malformed request, the place of the next one is not certain.
        (CONNECTION, HeaderValue::from_static("close")),
    ]);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &str, target: &str, hosts: &[&str]) -> Option<u16> {
        let request = Request::builder().method(method).uri(target);
        let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
        of(&request.body(()).unwrap()).map(|response| response.status().as_u16())
    }

    #[test]
    fn faulty_hosts_and_targets_are_refused_as_by_go() {
        assert_eq!(status("GET", "/healthz?x", &["a:80"]), None);
        assert_eq!(status("GET", "/%68ealthz", &["[fd00::1]:80"]), None);
        assert_eq!(status("GET", "/healthz", &[""]), None, "an empty one is there");
        for hosts in [&[][..], &["a", "b"], &["a b"], &["a/"]] {
            assert_eq!(status("GET", "/healthz", hosts), Some(400), "{hosts:?}");
        }
        for target in ["healthz", "/healthz%", "/healthz%zz", "/%6"] {
            assert_eq!(status("GET", target, &["a"]), Some(400), "{target}");
        }
        assert_eq!(status("OPTIONS", "*", &["a"]), Some(200), "of the server as a whole");
        assert_eq!(status("CONNECT", "a:80", &["a"]), None);
    }
}

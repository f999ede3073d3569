//! TLS by rustls.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::ConnectError;

/// How the server's certificate is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verification {
    /// Not at all: encryption against those who only listen.
    None,
    /// By the system's root certificates.
    System,
    /// By the root certificates of a PEM file.
    File(String),
}

pub(super) fn connector(verification: &Verification) -> Result<MakeRustlsConnect, ConnectError> {
    let provider = Arc::new(ring::default_provider());
    let failed = |error: rustls::Error| ConnectError::Tls(Box::new(error));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let config = match roots(verification)? {
        Some(roots) => builder.with_root_certificates(roots),
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider))),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn roots(verification: &Verification) -> Result<Option<RootCertStore>, ConnectError> {
    let mut store = RootCertStore::empty();
    match verification {
        Verification::None => return Ok(None),
        Verification::System => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Verification::File(path) => {
            let read = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| ConnectError::Tls(Box::new(error)))?;
            store.add_parsable_certificates(read);
        }
    }
    if store.is_empty() {
        return Err(ConnectError::Tls("there are no root certificates".into()));
    }
    Ok(Some(store))
}

/// Accepts any certificate, as `sslmode=require` asks for.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

# The page of Forescale: docker build -t forescale . && docker run -p 8000:8000 forescale
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir "/src[web]" && rm -rf /src && useradd --create-home forescale
USER forescale
WORKDIR /home/forescale
EXPOSE 8000
# Further names under which browsers may open the page: docker run … forescale serve --host 0.0.0.0 --allowed-host NAME
ENTRYPOINT ["forescale"]
CMD ["serve", "--host", "0.0.0.0"]
